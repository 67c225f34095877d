"""Keeps secrets out of files: known key patterns, and the values of environment variables whose names look secret."""

from __future__ import annotations

import json
import os
import re

MARK = "[redacted]"

#: Names of environment variables that hold secrets.
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?$", re.IGNORECASE)
_PATTERNS = re.compile(
    r"(?:\b|(?<=\\[bfnrt]))"  # a line break before a key is a letter in JSON
    r"(?:sk-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|xox[abpr]-[A-Za-z0-9-]{10,})"
)
_SHORTEST = 8  # characters; a shorter value would blank out ordinary text


#: A string of a JSON text, and the colon that makes it a key.
_STRING = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*:)?')


class Redactor:
    """Replaces secrets in JSON text that is about to be written. The environment is read once."""

    def __init__(self) -> None:
        values = {value for name, value in os.environ.items() if SECRET_NAME.search(name) and len(value) >= _SHORTEST}
        forms = {json.dumps(value, ensure_ascii=ascii)[1:-1] for value in values for ascii in (True, False)}
        self._values = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without secrets, and JSON as before: a value of the environment may also be a number or a key of ours."""
        if any(value in text for value in self._values):
            text = _STRING.sub(self._without_values, text)
        return _PATTERNS.sub(MARK, text)

    def _without_values(self, string: re.Match[str]) -> str:
        content, colon = string.groups(default="")
        if not colon:
            for value in self._values:
                content = content.replace(value, MARK)
        return content + colon
