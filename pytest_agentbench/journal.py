"""rollouts.jsonl: one line per finished rollout, appended and flushed as it ends; nothing is ever rewritten."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from pytest_agentbench.records import Rollout, RolloutKey

FILE = "rollouts.jsonl"


class Journal:
    """The journal of one run, open for appending; finds a written rollout again by its key. Safe to use from threads."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._file = self.path.open("ab+", buffering=0)
        self._places: dict[RolloutKey, tuple[int, int]] = {}  # key -> byte offset, bytes
        self._lock = Lock()

    def append(self, key: RolloutKey, line: bytes) -> None:
        """Adds one record: a JSON text without a newline. Raises OSError, and leaves no torn record, when the disk is full."""
        with self._lock:
            offset = self._file.seek(0, 2)
            if self._file.write(line + b"\n") != len(line) + 1:
                self._file.truncate(offset)
                raise OSError(errno.ENOSPC, "no space left for a record", str(self.path))
            self._places[key] = offset, len(line)

    def line(self, key: RolloutKey) -> bytes:
        """The record of a rollout; raises KeyError when none was written."""
        with self._lock:
            offset, size = self._places[key]
            self._file.seek(offset)
            return self._file.read(size) or b""

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def read_journal(directory: Path) -> Iterator[Rollout]:
    """The rollouts of a run, one at a time, in the order in which they ended. A last line torn by a kill is left out."""
    with (directory / FILE).open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield Rollout.from_json(line)
