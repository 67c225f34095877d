"""Writes a JSON file with one large array, whose elements are known in another order than that of the file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

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
