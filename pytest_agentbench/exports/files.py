"""Helpers for imports and exports: readers whose errors name the file, writers of large JSON arrays, the runs of an export, file names."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.metrics.columns import Origin
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.timeline import BlockCalendar
from pytest_agentbench.records import Json, arm_of
from pytest_agentbench.runs.run_file import Run, read_run
from pytest_agentbench.tables import Tables, origins, read_frame, read_tables

T = TypeVar("T")

WORDS = {list: "an array", dict: "an object", str: "a text", bool: "true or false", int: "a whole number", type(None): "null"}

_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()


def read_object(file: Path, *needed: str) -> Json:
    """Returns the JSON object in a file. Raises ConfigError if it is not an object or lacks one of the `needed` keys."""
    data = read_json_file(file)
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: contains {_kind(data)}, must be an object")
    if missing := [key for key in needed if key not in data]:
        raise ConfigError(f"{file}: the key {missing[0]!r} is missing")
    return data


def json_items(file: Path, size: int = 1 << 20) -> Iterator[Any]:
    """Yields the elements of a JSON array, one at a time. The memory used is a few times the largest element, however large the file is.

    Raises ConfigError if the file does not contain an array, or is truncated. `size` is the number of characters to read at a time.
    """
    try:
        with file.open(encoding="utf-8-sig") as stream:
            text = stream.read(size)
            at = _SPACE.match(text).end()  # type: ignore[union-attr]  # it matches anything
            if text[at : at + 1] != "[":
                raise ConfigError(f"{file}: must be a JSON array")
            at += 1
            while (element := _element(text, at)) != _END:
                if element is not None:
                    value, at = element
                    yield value
                elif more := stream.read(max(size, len(text) - at)):  # doubles the text: a long element is parsed seldom
                    text, at = text[at:] + more, 0
                else:
                    raise ConfigError(f"{file}: the JSON array is truncated or not valid JSON at {text[at : at + 40]!r}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error


_END = (None, -1)


def _element(text: str, at: int) -> tuple[Any, int] | None:
    """Parses the array element at a position of a JSON text. Returns (element, position of the next one).

    Returns _END after the last element, and None if the text ends too early.
    """
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "]":
        return _END
    try:
        value, end = _DECODER.raw_decode(text, at)
    except ValueError:
        return None
    end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    match text[end : end + 1]:
        case ",":
            return value, end + 1
        case "]":
            return value, end
        case _:
            return None


def epoch_ns(seconds: str) -> int:
    """Converts seconds since 1970 to nanoseconds. The seconds are a text, so that no digit is lost. Raises ValueError for other texts."""
    try:
        value = Decimal(seconds)
    except InvalidOperation as error:
        raise ValueError(f"{seconds!r} must be a time in seconds, such as 1700000000.25") from error
    if not value.is_finite():
        raise ValueError(f"{seconds!r} must be a time in seconds, such as 1700000000.25")
    return round(value * 10**9)


def iso_ns(text: Any, file: Path) -> int | None:
    """Converts an ISO 8601 time to nanoseconds since 1970, and None to None. Raises ConfigError, with the file, for anything else."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file}: {text!r} must be an ISO 8601 time, such as 2026-03-05T12:00:00Z") from error
    return round(Decimal(str(moment.timestamp())) * 10**9)


def dig(data: Any, *path: str) -> Any:
    """Returns the value at a path of keys in nested mappings, or None if it does not exist."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def member(data: Json, name: str, kind: type[T], file: Path) -> T | None:
    """Returns the value of a key, or None if it is missing or null. Raises ConfigError if it has another type."""
    value = data.get(name)
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise ConfigError(f"{file}: {name} is {_kind(value)}, must be {WORDS[kind]}")


def members(data: Json, name: str, file: Path) -> list[Json]:
    """Returns the objects in the array at a key, or none if it is missing. Raises ConfigError if it is not an array of objects."""
    values = member(data, name, list, file) or []
    if wrong := [value for value in values if not isinstance(value, dict)]:
        raise ConfigError(f"{file}: {name} contains {_kind(wrong[0])}, must be an array of objects")
    return values


def _kind(value: Any) -> str:
    return WORDS.get(type(value), "a number")


class ChosenRuns:
    """The runs that the user chose to export."""

    def __init__(self, directories: Sequence[Path], *, exact: bool = False) -> None:
        """`directories` are the run directories. If `exact` is set, texts in CSV files that look like formulas get no apostrophe.

        Raises ConfigError if a directory has no journal, or if two have the same name.
        """
        self.exact = exact
        self.notes: list[str] = []  # sentences of the writer on what its files lack
        self.origins: Sequence[Origin] = origins(directories)

    @cached_property
    def tables(self) -> Tables:
        return read_tables([each.directory for each in self.origins])

    @staticmethod
    def run_of(origin: Origin) -> Run:
        """Returns the run.json of a chosen run. Raises ConfigError if the file is missing or invalid."""
        return read_run(origin.directory)

    @staticmethod
    def split_by_arm(origin: Origin, run: Run, by: Literal["arm", "group"]) -> dict[str, tuple[Origin, Slice]]:
        """Splits the run of an A/B session into its arms (settings under comparison), or into its groups (suite and variant).

        Returns name -> (origin, rollouts), empty if the run has no arms. The clock of an origin (`calendar`) leaves out the time in which
        no rollout of the arm or group ran.
        """
        if not run.ab:
            return {}
        part = read_frame(origin, events=False).scenarios()
        if by == "arm":
            own = {name: part.where(arm=name) for name in dict.fromkeys(map(arm_of, part.rollouts["variant"]))}
        else:
            own = {name: part.where(group=name) for name in dict.fromkeys(part.rollouts["group"])}
        return {name: (origin._replace(calendar=BlockCalendar(origin.calendar, each.active_spans)), each) for name, each in own.items()}


LONGEST = 120  # maximum length of a name without prefixes and suffixes, bytes


class FileNames:
    """Assigns each id (of a scenario, for example) a unique name of a file or folder in an export, without extension."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, id: str) -> str:
        """Returns the name for an id: the id with `_` for invalid characters.

        A hash of the id is appended if the name is too long, or belongs to another id.
        """
        if id not in self._names:
            name = re.sub(r"[^\w.-]", "_", id)
            if len(name.encode()) > LONGEST or name in self._taken:
                name = f"{name.encode()[:LONGEST].decode(errors='ignore')}-{sha256(id.encode()).hexdigest()[:12]}"
            self._names[id] = name
            self._taken.add(name)
        return self._names[id]


PIECE = 1 << 16  # bytes that are copied at a time


class JsonArray:
    """A JSON array that is being written, in the order of its elements' positions.

    A temporary file holds the elements until the array is closed, so only a part of an element is in memory at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unordered = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  # closed by __exit__
        self._places: dict[int, tuple[int, int]] = {}  # position -> offset and length, bytes

    def add(self, position: int, parts: Iterable[str]) -> None:
        """Adds an element. `parts` are its JSON text. Unpaired surrogates, which UTF-8 cannot encode, become escapes."""
        start = self._unordered.tell()
        length = sum(self._unordered.write(part.encode(errors="backslashreplace")) for part in parts)
        self._places[position] = start, length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._unordered:
            if error is None:
                self._write()

    def _write(self) -> None:
        with self._path.open("wb") as file:
            file.write(b"[")
            for number, (_, (start, length)) in enumerate(sorted(self._places.items())):
                file.write(b",\n" if number else b"\n")
                self._unordered.seek(start)
                for place in range(0, length, PIECE):
                    file.write(self._unordered.read(min(PIECE, length - place)))
            file.write(b"\n]\n")


def array_parts(before: str, elements: Iterable[object], after: str) -> Iterable[str]:
    """Yields the JSON text of an array in parts, between two other texts. One element is in memory at a time."""
    yield before + "["
    for number, element in enumerate(elements):
        yield (", " if number else "") + json_text(element)
    yield "]" + after


def json_text(value: object) -> str:
    """Returns the JSON text of a value of an export. Objects that `json` cannot encode become texts, and non-finite numbers are kept."""
    return json.dumps(value, ensure_ascii=False, default=str)
