"""Keeps secrets out of what is written: known shapes of keys, and the values of environment variables whose names look secret."""

from __future__ import annotations

import base64
import bisect
import functools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, quote_plus

MARK = "[redacted]"

#: Names of environment variables that hold secrets.
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?<![^_])(PASS|PAT|AUTH))S?(_?\d+)?$", re.IGNORECASE)
_NAMING = ("api_key_env", "api_key", "secrets", "keys")  # keys of our YAML files whose values are names of such variables
_SHORTEST = 8  # characters; a shorter value would blank out ordinary text
_DEPTH = 4  # JSON within JSON: the arguments of a tool call, in a message, in a message, in a record

#: What stands before a key: no letter or digit, or one that is the rest of an escape.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4})|(?<=%[0-9A-Fa-f]{2}))"

#: Known shapes: what to look for, which is quick, and the whole of it from there. The group is the secret, without one it is all of it.
_SHAPES = [
    (beginning, re.compile(pattern))
    for beginning, pattern in (
        ("sk-", rf"{_START}sk-[A-Za-z0-9_-]{{20,}}"),  # OpenAI, Anthropic, OpenRouter and others
        ("sk_live_", rf"{_START}sk_live_[A-Za-z0-9]{{16,}}"),  # Stripe
        ("hf_", rf"{_START}hf_[A-Za-z0-9]{{20,}}"),
        ("nvapi-", rf"{_START}nvapi-[A-Za-z0-9_-]{{20,}}"),
        *((f"gh{kind}_", rf"{_START}gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),
        ("github_pat_", rf"{_START}github_pat_[A-Za-z0-9_]{{22,}}"),
        ("glpat-", rf"{_START}glpat-[A-Za-z0-9_.-]{{20,}}"),  # GitLab, and the token of a job there
        ("glcbt-", rf"{_START}glcbt-[A-Za-z0-9_.-]{{20,}}"),
        ("AKIA", rf"{_START}AKIA[A-Z0-9]{{16}}"),
        ("ASIA", rf"{_START}ASIA[A-Z0-9]{{16}}"),
        ("xox", rf"{_START}xox[abeoprs]-[A-Za-z0-9-]{{10,}}"),
        ("xapp-", rf"{_START}xapp-[A-Za-z0-9-]{{10,}}"),
        ("AIza", rf"{_START}AIza[A-Za-z0-9_-]{{35}}"),
        ("ya29.", rf"{_START}ya29\.[A-Za-z0-9_-]{{20,}}"),
        ("GOCSPX-", rf"{_START}GOCSPX-[A-Za-z0-9_-]{{20,}}"),
        ("npm_", rf"{_START}npm_[A-Za-z0-9]{{36}}"),
        ("pypi-AgE", rf"{_START}pypi-AgE[A-Za-z0-9_-]{{50,}}"),
        ("eyJ", rf"{_START}eyJ[A-Za-z0-9_-]{{8,}}\.eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}"),  # JWT
        # a word of so many letters without a digit is English
        *((word, rf"{word} {{1,4}}((?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{{20,}}={{0,2}})") for word in ("earer", "EARER", "Basic")),
        ("hooks.slack.com/services/", r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,})"),
        *((name, rf"{name}\W{{1,12}}([A-Za-z0-9+/]{{40}})(?![A-Za-z0-9+/])") for name in ("ws_secret_access_key", "WS_SECRET_ACCESS_KEY")),
        ("-----BEGIN ", r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]{20,}?-----END [A-Z ]{0,30}PRIVATE KEY-----"),
        ("://", r"://[^/\s:@\"\\]{0,64}:([^@/\s\"\\]{3,})@"),  # the password of a URL
    )
]

#: A string of a JSON text, and the colon that makes it a key.
_STRING = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*+:)?', re.DOTALL)


class Redactor:
    """Replaces secrets in text that is about to be written. The environment is read once."""

    def __init__(self, named: Collection[str] = ()) -> None:
        """`named`: further variables that hold secrets, whatever their names look like."""
        values = {value for name, value in os.environ.items() if name in named or SECRET_NAME.search(name)}
        values = {value for value in values if len(value.strip()) >= _SHORTEST}
        values |= {value.strip() for value in values}
        forms = {form for value in values for form in _forms(value)}
        self._values = sorted(forms, key=len, reverse=True)
        self._as_bytes = [form.encode(errors="surrogateescape").decode("latin-1") for form in self._values]

    def __call__(self, text: str) -> str:
        """A JSON text without secrets, and as valid as before. The values of variables stay in numbers and in keys, which are ours."""
        found = sorted(start for start, _ in (*_known(text), *_places(text, self._values)))
        return _STRING.sub(functools.partial(self._in_string, found), text) if found else text

    def plain(self, text: str) -> str:
        """The same for a text that is no JSON."""
        return _replaced(text, [*_known(text), *_places(text, self._values)])

    def blanked(self, text: bytes, first: int = 0, stop: int | None = None) -> bytes:
        """The same for what lies in a file, not a byte longer or shorter; only what begins from `first` to before `stop`."""
        letters = text.decode("latin-1")
        kept = bytearray(text)
        stop = len(text) if stop is None else stop
        found = (each for each in (*_known(letters), *_places(letters, self._as_bytes)) if first <= each[0] < stop)
        for start, end in _merged(found):
            kept[start:end] = MARK.encode()[: end - start].ljust(end - start, b"*")
        return bytes(kept)

    def _in_string(self, found: Sequence[int], string: re.Match[str]) -> str:
        if bisect.bisect(found, string.start()) == bisect.bisect(found, string.end()):
            return string[0]
        quoted, colon = string.groups(default="")
        content: str = json.loads(quoted, strict=False)
        clean = _replaced(content, [*_known(content)]) if colon else self.plain(content)
        return string[0] if clean == content else json.dumps(clean) + colon


def named_secrets(settings: object) -> Iterator[str]:
    """The environment variables that settings, as a YAML has them, name as the places of keys."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if name in _NAMING:
                yield from [value] if isinstance(value, str) else map(str, value or ())
            yield from named_secrets(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from named_secrets(value)


def _forms(value: str) -> Iterator[str]:
    """How a value may be written: as it is, in a URL, in base64 with other text around it, and in JSON within JSON."""
    data = value.encode(errors="surrogateescape")
    in_url = {quote(data, safe=""), quote(data), quote_plus(data)}
    forms = {value, *in_url, *(re.sub(r"%[0-9A-F]{2}", lambda each: each[0].lower(), form) for form in in_url)}
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        inner = coded[before + (before > 0) : len(coded) - bool((len(data) + before) % 3)]  # the ends depend on what is around it
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    for _ in range(_DEPTH + 1):
        yield from forms
        forms = {json.dumps(form, ensure_ascii=ascii)[1:-1] for form in forms for ascii in (True, False)}


def _known(text: str) -> Iterator[tuple[int, int]]:
    """Where secrets of known shapes are."""
    for beginning, pattern in _SHAPES:
        at = text.find(beginning)
        while at >= 0:
            found = pattern.match(text, at)
            if found:
                yield found.span(pattern.groups)
            at = text.find(beginning, found.end() if found else at + 1)


def _places(text: str, values: list[str]) -> Iterator[tuple[int, int]]:
    for value in values:
        at = text.find(value)
        while at >= 0:
            yield at, at + len(value)
            at = text.find(value, at + 1)


def _merged(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The places in order; those that overlap are one."""
    start, end = 0, 0
    for each in sorted(places):
        if each[0] >= end:
            if end:
                yield start, end
            start = each[0]
        end = max(end, each[1])
    if end:
        yield start, end


def _replaced(text: str, places: list[tuple[int, int]]) -> str:
    parts, at = [], 0
    for start, end in _merged(places):
        parts += [text[at:start], MARK]
        at = end
    return "".join((*parts, text[at:])) if parts else text
