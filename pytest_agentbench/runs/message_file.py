"""messages.jsonl, beside the journal of a run: the requests and replies of its calls, each distinct value once.

Calls in the journal refer to its lines by their ids (`KeptCall`). An id is a hash of the redacted value, so equal values have equal ids in
all runs, and an id does not help to guess a secret. The prompts of a run form a tree: a node is a message with the id
of the node before it. So the file grows with the number of messages, and not with the sizes of all requests.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.lib.kept_values import (
    FILE,
    FORM,
    QUOTED_ID,
    NodeLine,
    ValueLine,
    node_id,
    parsed,
    value_id,
)

RECENT = 1000  # values that are kept in memory, because many conversations begin alike
LARGEST_FILE = 1_000_000_000  # bytes; later values are not written


class MessageFile:
    """The open messages.jsonl of a run: redacts lines and appends those that the file does not have yet.

    Each line begins with a CRC-32, as lines of the journal do. Lines are written before the record that refers to them, so that a session
    that is killed leaves no record with missing lines. Beyond LARGEST_FILE bytes, nothing is written.

    Not thread-safe. The lock of the journal makes sure that one session writes at a time.
    """

    def __init__(self, directory: Path, redact: Callable[[str], str], most: int = LARGEST_FILE) -> None:
        """Opens the file, reads the ids in it, and removes an incomplete last line."""
        self.path = directory / FILE
        self._redact, self._most = redact, most
        self._known: set[str] = set()  # ids in the file
        self._changed: dict[str, str] = {}  # id of a value or node before redaction -> id in the file
        self.size = 0  # bytes of the file
        self._file = io.FileIO(self.path, "a+")  # stays open, so nothing is lost if the run directory is removed
        index = MessageIndex(self.path)
        index.update()
        self._known.update(index.places)
        self.size = index.end
        self._file.truncate(self.size)

    @property
    def is_full(self) -> bool:
        """Whether values were left out because the file would become too large."""
        return self.size >= self._most

    def add(self, lines: Iterable[bytes]) -> Mapping[str, str]:
        """Appends lines without newlines, as `lib/kept_values` defines them. Returns the ids that redaction changed: before -> after.

        Raises OSError if the disk is full. The file then ends with a complete line.
        """
        new: dict[str, bytes] = {}
        changed: dict[str, str] = {}
        for line in lines:
            record = parsed(line)
            id = self._changed.get(record.id, record.id)
            if id == record.id and id not in self._known and id not in new:
                clean = self._redacted(record)
                id = clean.id
                if id not in self._known and not self.is_full:
                    new[id] = sealed(clean.written()) + b"\n"
            if id != record.id:
                self._changed[record.id] = changed[record.id] = id
        self._write(b"".join(new.values()))
        self._known.update(new)
        return changed

    def _redacted(self, record: ValueLine | NodeLine) -> ValueLine | NodeLine:
        if isinstance(record, NodeLine):
            before, message = (self._changed.get(each, each) for each in (record.before, record.message))
            return record if (before, message) == record[1:] else NodeLine(node_id(before, message), before, message)
        text = record.written()
        if record.id[0] == FORM:  # A form has the ids of its parts.
            text = with_changed_ids(text, self._changed)
        clean = self._redact(text.decode())
        found = parsed(clean.encode())
        assert isinstance(found, ValueLine)
        return record if found.text == record.text else ValueLine(value_id(record.id[0], found.text), found.text)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._file.write(data) != len(data):
            self._file.truncate(self.size)
            raise OSError(errno.ENOSPC, "no space left for messages", str(self.path))
        self.size += len(data)

    def restore_file(self) -> None:
        """Writes the file again if it was deleted during the session. Raises FileExistsError if it exists."""
        self._file.seek(0)
        with self.path.open("xb") as file:
            shutil.copyfileobj(self._file, file)

    def close(self) -> None:
        """Closes the file, and removes it if it is empty."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
            if not self.size:
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def with_changed_ids(line: bytes, changed: Mapping[str, str]) -> bytes:
    """Returns a text in which ids of lines in messages.jsonl are replaced. `changed` maps old ids to new ones.

    The text is a line of the journal, or a request for messages.jsonl with the ids of its parts.
    """
    if not changed:
        return line
    return QUOTED_ID.sub(lambda found: b'"%b"' % changed.get(id := found[1].decode(), id).encode(), line)


def copy_messages(source: Path, target: Path, redact: Callable[[str], str]) -> Mapping[str, str]:
    """Copies messages.jsonl of the run directory `source`, redacted once more. Returns the ids that redaction changed: before -> after.

    Writes nothing if the run has no such file. Damaged lines are left out.
    """
    changed: dict[str, str] = {}
    if (source / FILE).is_file():
        with MessageFile(target, redact) as copy, (source / FILE).open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    changed |= copy.add([opened(line.removesuffix(b"\n"))])
    return changed


class MessageIndex:
    """The offset and the size in bytes of each line of messages.jsonl, by id. Damaged and incomplete lines are left out."""

    def __init__(self, path: Path) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        self.end = 0  # offset after the last complete line that was read
        self._path = path

    def update(self) -> None:
        """Reads the lines that were added since the last call."""
        with self._path.open("rb") as file:
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                with suppress(ValueError):  # A damaged value is missing for those who need it.
                    self.places[parsed(opened(line[:-1])).id] = self.end, len(line) - 1
                self.end += len(line)
