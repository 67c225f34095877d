"""Redacts secrets in texts before they are written or shown, and in log files that services have written themselves.

Secrets are API keys of known formats, passwords in URLs, and the values of environment variables whose names indicate a secret. In
records, only free text is searched for values of variables. Names and expected values of scenarios stay unchanged.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from pytest_agentbench.lib.cut_marks import cuts
from pytest_agentbench.lib.key_shapes import SECRET_NAME, place_of_truncated_key, places_of_keys

MARK = "[redacted]"

_NAMING = ("api_key_env", "api_key", "secrets", "keys")  # YAML keys whose values are names of variables with secrets
_SHORTEST = 8  # characters of a value at least; shorter values would match ordinary text
_SHORTEST_PART = 6  # characters at least of a truncated value that is redacted
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_LONGEST_WORD = 16  # letters
_DEPTH = 4  # levels of JSON within JSON: arguments of a tool call, in a message, in a message, in a record

#: Keys of records and run.json whose values are identifiers: names, ids, tools, statuses, hashes.
_NAMES = frozenset(
    """
    suite scenario variant variants status kind cluster name id tool tool_call_id role type dialect model served_model
    answered_by response_id token_source finish_reason stamp problem agent backend scorer scorers score expected_tools actual_tools
    error_kind verdict schema label_source file folder format sha256 hash commit diff revision version gate baseline wraps policy
    metric group arm base_arm new_arm method ab cache
    """.split()  # noqa: SIM905 - a list would be fifty lines
)
_LABELS = frozenset({"expected", "chunks"})  # keys whose values are never changed
_FOREIGN = frozenset({"arguments", "env", "headers", "options", "facts", "server"})  # keys of objects whose own keys are not ours
_VALUE = "value"  # key of what agents and models sent, in lines of messages.jsonl

#: A string in a JSON text, with the colon after it if it is a key, or a bracket.
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*+:)?|[\[\]{}]', re.DOTALL)


#: Secrets that are not in an environment variable, such as the password of a URL on the command line.
_kept_secrets: set[str] = set()


def keep_secret(*values: str) -> None:
    """Makes every Redactor that is created later in this process redact these values."""
    _kept_secrets.update(values)


def is_telling(value: str) -> bool:
    """Returns whether a secret is long enough to be redacted everywhere. A shorter one may be part of ordinary text."""
    return len(value.strip()) >= _SHORTEST


class _Kind(Enum):
    """The meaning of a value in a record or in run.json, derived from its key. It decides what is redacted in the value."""

    TEXT = "free text"
    NAME = "names; the values of an object in it are free text again"
    LABEL = "part of the data set, with everything in it"
    FOREIGN = "free text with everything in it, whatever the keys are"
    KEPT = "free text with everything in it, also the keys"
    PASSWORD = "a text whose key is `password`"


@dataclass(frozen=True)
class PublicText:
    """The content of suites, which is public and therefore never secret, as JSON with unescaped characters."""

    texts: str = ""  # names, ids, tools and data
    labels: str = ""  # the expected values in these texts


class Redactor:
    """Replaces secrets in texts by a mark. The secrets are read from the environment once, when the object is created."""

    def __init__(self, named: Collection[str] = (), public: PublicText = PublicText()) -> None:
        """`named` are environment variables that contain secrets although their names may not indicate it.

        A value that occurs in the public text of suites is not a secret, so records keep it. The same is true for keys in expected values.
        """
        values = {name: value for name, value in os.environ.items() if name in named or SECRET_NAME.search(name)}
        values = {name: value for name, value in values.items() if is_telling(value)}
        self._words = sorted(name for name, value in values.items() if name not in named and _is_word(value))
        searched = {name: value for name, value in values.items() if name not in self._words}
        self._public = sorted(
            name for name, value in searched.items() if json.dumps(value.strip(), ensure_ascii=False)[1:-1] in public.texts
        )
        self._in_texts = _all_forms([*searched.values(), *_kept_secrets])
        self._in_records = _all_forms([*(value for name, value in searched.items() if name not in self._public), *_kept_secrets])
        self._as_bytes = [form.encode(errors="surrogateescape").decode("latin-1") for form in self._in_texts]
        self._labels = {public.labels[start:end] for start, end in places_of_keys(public.labels)}

    @property
    def advice(self) -> list[str]:
        """Sentences on secrets that are not redacted, because they are an ordinary word or occur in a suite. They name the variables."""
        because = ((self._words, "an ordinary word", "anywhere"), (self._public, "a text of a suite", "in records and reports"))
        return [
            f"{', '.join(names)}: the value is {what}, so it is not redacted {where}; a secret needs another value"
            for names, what, where in because
            if names
        ]

    def __call__(self, text: str) -> str:
        """Redacts the JSON text of a record or of run.json. It stays valid: names, expected values and numbers are not changed.

        Keys of objects are changed only in `value` of a line of messages.jsonl.
        """
        secrets = sorted(start for start, _ in _all_places(text, self._in_records))
        return "".join(self._parts(text, iter(secrets))) if secrets else text

    def plain(self, text: str) -> str:
        """Redacts a text that is not JSON."""
        return _replaced(text, _all_places(text, self._in_texts))

    def blanked(self, text: bytes, first: int = 0, stop: int | None = None) -> bytes:
        """Redacts the bytes of a file without changing their number: secrets that begin at `first` or later, and before `stop`."""
        letters = text.decode("latin-1")
        kept = bytearray(text)
        stop = len(text) if stop is None else stop
        secrets = (each for each in _all_places(letters, self._as_bytes) if first <= each[0] < stop)
        for start, end in _merged(secrets):
            kept[start:end] = MARK.encode()[: end - start].ljust(end - start, b"*")
        return bytes(kept)

    def _parts(self, text: str, secrets: Iterator[int]) -> Iterator[str]:
        """Yields the parts of a JSON text with secrets redacted. `secrets` are the sorted positions at which secrets begin."""
        here = value = _Kind.TEXT  # Kinds of the enclosing object or list, and of the next value.
        around: list[tuple[_Kind, _Kind]] = []
        at, secret = 0, next(secrets)
        for token in _TOKEN.finditer(text):
            quoted, colon = token.groups()
            if quoted is None:
                if token[0] in "{[":
                    around.append((here, value))
                    here = value = _Kind.TEXT if value is _Kind.PASSWORD or (value is _Kind.NAME and token[0] == "{") else value
                elif around:
                    here, value = around.pop()
                continue
            start, end = token.span()
            own = value
            if colon is not None:
                own, value = here if here in (_Kind.LABEL, _Kind.KEPT) else _Kind.NAME, _kind(quoted[1:-1], here, is_top=len(around) == 1)
            if secret < end:
                yield text[at:start]
                yield self._string(quoted, own) + (colon or "")
                at = end
                secret = next((each for each in secrets if each >= end), len(text))
                if secret == len(text):
                    break
        yield text[at:]

    def _string(self, quoted: str, kind: _Kind) -> str:
        if kind is _Kind.LABEL:
            return quoted
        content: str = json.loads(quoted, strict=False)
        if kind is _Kind.PASSWORD:
            return quoted if content in self._labels else json.dumps(MARK)
        values = [] if kind is _Kind.NAME else [*_places(content, self._in_records), *_truncated_values(content, self._in_records)]
        keys = [(start, end) for start, end in places_of_keys(content, values) if content[start:end] not in self._labels]
        clean = _replaced(content, [*keys, *values])
        return quoted if clean == content else json.dumps(clean)


def _kind(key: str, here: _Kind, *, is_top: bool) -> _Kind:
    """Returns the kind of a value, given its key and the kind of the object that contains it (`here`).

    `is_top` says whether that object is the whole record.
    """
    if here is _Kind.LABEL:
        return here
    if key.lower() == "password":
        return _Kind.PASSWORD
    if here is _Kind.KEPT or (is_top and key == _VALUE):
        return _Kind.KEPT
    if key in _LABELS:
        return _Kind.LABEL
    return _Kind.FOREIGN if _Kind.FOREIGN is here or key in _FOREIGN else _Kind.NAME if key in _NAMES else _Kind.TEXT


def _is_word(value: str) -> bool:
    value = value.strip()
    return len(value) <= _LONGEST_WORD and _WORD.fullmatch(value) is not None


def named_secrets(settings: object) -> Iterator[str]:
    """Yields the names of environment variables that contain secrets, according to keys such as `api_key_env` in YAML settings."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if name in _NAMING:
                yield from [value] if isinstance(value, str) else map(str, value or ())
            yield from named_secrets(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from named_secrets(value)


def _all_forms(values: Iterable[str]) -> list[str]:
    """Returns all forms in which secrets may be written (see `_forms`), the longest first."""
    variants = {each for value in values for each in (value, value.strip(), " ".join(value.split()))}
    return sorted({form for each in variants for form in _forms(each)}, key=len, reverse=True)


def _forms(value: str) -> Iterator[str]:
    """Yields the forms in which a secret may be written: unchanged, in Python's repr, in a URL, in base64, and in JSON within JSON."""
    data = value.encode(errors="surrogateescape")
    in_url = {quote(data, safe=""), quote(data), quote_plus(data)}
    forms = {value, *_python_forms(value, data), *in_url, *(re.sub(r"%[0-9A-F]{2}", lambda each: each[0].lower(), form) for form in in_url)}
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        inner = coded[before + (before > 0) : len(coded) - bool((len(data) + before) % 3)]  # The ends depend on the text around it.
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    for _ in range(_DEPTH + 1):
        yield from forms
        forms = {json.dumps(form, ensure_ascii=ascii)[1:-1] for form in forms for ascii in (True, False)}


def _python_forms(value: str, data: bytes) -> Iterator[str]:
    """Yields the forms of a secret inside the repr of a longer text. They differ in quotes, depending on the quotes in that text."""
    for quote_mark in ("'", "\\'"):
        for write in (repr, ascii):
            yield quote_mark.join(write('"' + part)[2:-1] for part in value.split("'"))
        yield quote_mark.join(repr(b'"' + part)[3:-1] for part in data.split(b"'"))


def _all_places(text: str, values: Iterable[str]) -> list[tuple[int, int]]:
    """Returns (start, end) of each secret in a text: the values, also if truncated, and keys of known formats."""
    values = [*values]
    places = [*_places(text, values), *_truncated_values(text, values)]
    return [*places, *places_of_keys(text, places)]


def _places(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each occurrence of a value."""
    for value in values:
        at = text.find(value)
        while at >= 0:
            yield at, at + len(value)
            at = text.find(value, at + 1)


def _truncated_values(text: str, values: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of truncated secrets next to a truncation mark.

    Before a mark, this is the beginning of a value or key; after a mark, the end of a value.
    """
    for mark in cuts(text):
        if (key := place_of_truncated_key(text, mark.start())) is not None:
            yield key
        for value in values:
            start = max(0, mark.start() - len(value))
            before, after = text[start : mark.start()], text[mark.end() : mark.end() + len(value)]
            at = before.find(value[:_SHORTEST_PART])
            while at >= 0 and not value.startswith(before[at:]):
                at = before.find(value[:_SHORTEST_PART], at + 1)
            if at >= 0:
                yield start + at, mark.start()
            at = after.rfind(value[-_SHORTEST_PART:])
            while at >= 0 and not value.endswith(after[: at + _SHORTEST_PART]):
                at = after.rfind(value[-_SHORTEST_PART:], 0, at + _SHORTEST_PART - 1)
            if at >= 0:
                yield mark.end(), mark.end() + at + _SHORTEST_PART


def _merged(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields places (start, end) in order. Overlapping places become one."""
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


LOG_TAIL = 50  # lines of a log in an error message
_BYTES = 1 << 16  # bytes that are read for these lines


def tail(log: Path, lines: int = LOG_TAIL) -> list[str]:
    """Returns the last lines of a log, redacted. Returns an empty list if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return Redactor().plain(text).splitlines()[-lines:]


def indented(lines: list[str]) -> str:
    """Returns the lines as one indented text, to follow a sentence in a message."""
    return "\n".join(f"    {line}" for line in lines) or "    (nothing)"


_BLOCK = 1 << 20  # bytes that are searched at once
_LONGEST = 1 << 14  # bytes of the longest secret; one that begins earlier than this before the end of a block ends within the block
_BEFORE = 16  # bytes before a secret that decide whether it is one


class ScrubResult(NamedTuple):
    """The result of redacting log files."""

    cleaned: list[Path]  # logs that contained secrets
    failed: dict[Path, OSError]  # logs that could not be read or written


def scrub(directory: Path, redactor: Redactor) -> ScrubResult:
    """Redacts all logs below a directory. If one fails, the others are still redacted."""
    scrubbed = ScrubResult([], {})
    for log in sorted(directory.rglob("*.log")):
        try:
            if log.is_file() and not log.is_symlink() and _scrub(log, redactor):
                scrubbed.cleaned.append(log)
        except OSError as error:
            scrubbed.failed[log] = error
    return scrubbed


def _scrub(log: Path, redactor: Redactor) -> bool:
    """Redacts a log and returns whether it was changed. No byte moves, so that a process that still writes the log is not disturbed."""
    changed = False
    with log.open("r+b") as file:
        size, start = file.seek(0, os.SEEK_END), 0
        while start < size:
            before = min(start, _BEFORE)
            block = os.pread(file.fileno(), _BLOCK, start - before)
            stop = len(block) - _LONGEST if start - before + len(block) < size else len(block)
            clean = redactor.blanked(block, before, stop)
            if clean != block:
                changed = True
                os.pwrite(file.fileno(), clean, start - before)
            start += stop - before
    return changed
