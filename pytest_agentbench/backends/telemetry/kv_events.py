"""The file kv_events.jsonl, which has the changes of the KV caches of engines during a run: writing and reading it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, final

import orjson

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import AppendedFile

FILE = "kv_events.jsonl"

BlockHash = int | str  # as the engine names a block of its KV cache, which depends on all tokens up to the end of the block

EventKind = Literal["stored", "removed", "cleared", "lost"]
KINDS: tuple[EventKind, ...] = ("stored", "removed", "cleared", "lost")


#: Exceptions for a line that is not JSON (ValueError) or not an event.
FAULTS = (ValueError, TypeError, KeyError, OverflowError)


@final
class KvEventLine(TypedDict):
    """A change of the KV cache of one engine."""

    at: float  # when the engine published it, seconds since 1970
    ns: int  # the same in nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    service: str  # the service of the engine; with arms, ARM.SERVICE
    replica: int  # counted from 0
    event: str  # `stored` or `removed` blocks, `cleared` cache, or `lost` events
    blocks: NotRequired[list[int | str]]  # hashes of the blocks, in the order of the prompt if they were stored
    parent: NotRequired[int | str]  # hash of the block before the first stored one; missing for the beginning of a prompt
    block_size: NotRequired[int]  # tokens in a stored block
    medium: NotRequired[str]  # where the cache is, if the engine says so, such as `GPU`
    batches: NotRequired[int]  # number of messages of the engine that have not arrived


@dataclass(frozen=True, slots=True)
class KvEvent:
    """A change of the KV cache of one engine."""

    at: float  # when the engine published it, seconds since 1970
    at_ns: int  # the same, nanoseconds of the monotonic clock
    source: tuple[str, int]  # service and replica of the engine
    kind: EventKind
    blocks: tuple[BlockHash, ...] = ()
    parent: BlockHash | None = None  # the block before the first one
    block_size: int | None = None  # tokens
    batches: int = 0  # messages that have not arrived
    medium: str = ""  # where the cache is; empty if the engine does not say so


@dataclass(frozen=True)
class EventSource:
    """A file to which the stack of an arm appends KV cache events."""

    path: Path
    arm: str = ""  # empty without arms that have a stack each


class EventCopy:
    """Copies new KV cache events from the files of stacks to the file of a run, which is created with the first event.

    Events that were in the files when the object was created are ignored: they belong to the checks at boot, or to another session.
    """

    def __init__(self, sources: Sequence[EventSource], file: Path) -> None:
        self.ignored = 0  # lines that are not events
        self._sources = [(AppendedFile(source.path), source.arm) for source in sources]
        self._file = file

    def copy(self) -> None:
        """Appends the events that are new since the last call. Raises OSError."""
        lines = [line for file, arm in self._sources for written in file.new_lines() if (line := self._line(written, arm))]
        if not lines:
            return
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, b"".join(lines))
        finally:
            os.close(descriptor)

    def _line(self, written: bytes, arm: str) -> bytes | None:
        """Returns a line with the name of its arm and the time of the monotonic clock, or None if it is not an event."""
        try:
            line = orjson.loads(written)
            line["ns"] = time.monotonic_ns() - time.time_ns() + round(line["at"] * 1e9)
            if arm:
                line["service"] = f"{arm}.{line['service']}"
            event_of(line)
            return orjson.dumps(line) + b"\n"
        except FAULTS:
            self.ignored += 1
            return None


def read_kv_events(directory: Path) -> Iterator[KvEvent]:
    """Reads kv_events.jsonl in a run directory, and yields its events in the order of their arrival.

    Yields none if the run has no such file. Raises ConfigError for a line that is not an event.
    """
    path = directory / FILE
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):  # A killed session may leave a truncated last line.
                try:
                    yield event_of(orjson.loads(line))
                except FAULTS as error:
                    raise ConfigError(f"{path}:{number}: not a KV cache event: {error}; remove the line") from error


def event_of(line: KvEventLine) -> KvEvent:
    """Returns the event of a line. Raises one of FAULTS if it is not one."""
    if line["event"] not in KINDS:
        raise ValueError(f"unknown event {line['event']!r}")
    blocks, size = tuple(line.get("blocks", ())), line.get("block_size")
    if not all(isinstance(block, (int, str)) for block in blocks):
        raise TypeError("a block is neither a number nor a text")
    if size is not None and size < 1:
        raise ValueError(f"block_size is {size!r}")
    source, numbers = (str(line["service"]), int(line["replica"])), (size, int(line.get("batches", 0)))
    return KvEvent(
        float(line["at"]), int(line["ns"]), source, line["event"], blocks, line.get("parent"), *numbers, str(line.get("medium", ""))
    )
