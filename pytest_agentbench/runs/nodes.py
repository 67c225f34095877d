"""nodes.jsonl, in the directory of a run: the node workers of its sessions, how they were started, and the CPU use of their processes.

A line is appended when something about a node worker or a launch changes. The last line of each counts.
"""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import fsum
from pathlib import Path

from pytest_agentbench.launchers import LOCAL
from pytest_agentbench.lib import codec, json_text, wire
from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.metrics.stopwatch import CpuSample

FILE = "nodes.jsonl"

MAX_CONNECT_DIFFERENCE_MS = 1.0  # difference of connect times of nodes above which latencies depend on the node


@dataclass(frozen=True)
class NodeRecord:
    """A [node worker](nodes.md), which made attempts of rollouts on a machine of its own."""

    session: int  # number of the session, counted from 1
    name: str  # name in the session, such as `w3`; a node worker that joins again gets another name
    node: str  # name of its machine
    slots: int  # maximum number of attempts at the same time
    cores: int  # number of CPU cores of its machine
    niceness: int  # nice value of its processes; above 0, other processes of the machine take precedence
    python: str  # version of Python, such as 3.11
    joined_at: str  # when it joined the session, ISO 8601
    left_at: str | None = None  # when it left, ISO 8601; null if it was there until the session ended
    why_left: str = ""  # why it left before the session ended; empty if it did not
    attempts: int = 0  # attempts whose record it sent
    lost: int = 0  # attempts that it had begun when it left; others made them again
    dropped: int = 0  # results that were ignored, because their attempt had been given to others or cancelled
    # greatest distance of the bounds between which the offset of its clock lay, milliseconds; times of its rollouts on the clock of the
    # session are wrong by half of it at most; null if it sent no record
    clock_width_ms: float | None = None
    connect_ms: float | None = None  # median time that connecting to the backend took, milliseconds; null if it was not measured
    lag_ms: float | None = None  # longest time by which a timer of its runner was late, milliseconds; null if it was not measured
    tap_cpu: float | None = None  # CPU use of its tap in the busiest second with calls in flight, share of one core; null if not measured
    runner_cpu: float | None = None  # the same of its runner, the process that makes the attempts

    @property
    def key(self) -> tuple[int, str]:
        """Session and name, which identify a node worker within a run."""
        return self.session, self.name

    @property
    def machine(self) -> str:
        """Name of its machine. Empty for the machine of the session, on which `local:N` starts node workers."""
        return "" if self.node.startswith(f"{LOCAL}-") else self.node

    @property
    def place(self) -> str:
        """`w3 on node-c`: the name of the node worker and of its machine."""
        return f"{self.name} on {self.node}"


@dataclass(frozen=True)
class NodeCpu:
    """The CPU use of the processes of a node worker in some seconds."""

    session: int
    name: str  # name of the node worker
    cpu: Mapping[str, tuple[CpuSample, ...]]  # process (`tap`, `runner`, ...) -> samples, on the clock of the session


@dataclass(frozen=True)
class LaunchRecord:
    """How [a launcher](scale.md) has started the node workers of a session."""

    session: int  # number of the session, counted from 1
    launcher: str  # value of --agentbench-nodes
    id: str  # what they were started as, such as `job 17`; empty if it has no name
    queue_s: float | None  # seconds until all of them had a machine; null if that has not happened
    waiting: str = ""  # why they wait, such as `PENDING (Resources)`; empty if they do not
    problems: tuple[str, ...] = ()  # sentences on what went wrong


NodeNote = NodeRecord | NodeCpu  # written for the pool
NodeEntry = NodeNote | LaunchRecord
ENTRIES: wire.Messages[NodeEntry] = wire.Messages(NodeEntry)


def local_time() -> str:
    """Returns the time of day, as fields of NodeRecord have it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class NodeLog:
    """The open nodes.jsonl of a session. Each line reaches the operating system at once. Safe to use from threads.

    If a line cannot be written, the user gets one warning and the session continues.
    """

    def __init__(self, directory: Path, redact: Callable[[str], str], notify: Callable[[str], None]) -> None:
        """Opens the file. `notify` shows a sentence to the user."""
        self.path = directory / FILE
        self._redact, self._notify = redact, notify
        self._has_warned = False
        self._lock = threading.RLock()
        self._present: dict[str, NodeRecord] = {}  # node workers of the session that have not left
        self._file = self.path.open("ab", buffering=0)
        self._end = b"\n" if self.path.stat().st_size else b""  # ends a line that may be incomplete

    def pool_died(self) -> None:
        """Notes that the node workers have left, because the pool to which they were connected has died. They join the next one anew."""
        with self._lock:
            for record in [*self._present.values()]:
                self.append(replace(record, left_at=local_time(), why_left="the pool died"))

    def append(self, entry: NodeEntry) -> None:
        """Writes the newest state of a node worker, or samples of its CPU use."""
        text = json_text.dumps_any({"entry": wire.header(entry)}).decode()
        line = sealed(self._redact(text).encode()) + b"\n"
        with self._lock:
            if isinstance(entry, NodeRecord):
                self._present.pop(entry.name, None)
                if entry.left_at is None:
                    self._present[entry.name] = entry
            self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            if self._file.write(self._end + line) != len(self._end + line):
                raise OSError(errno.ENOSPC, "no space left")
            self._end = b""
        except OSError as error:
            self._end = b"\n"
            if not self._has_warned:
                self._has_warned = True
                self._notify(f"{self.path} cannot be written: {error}; the report may lack facts about nodes")

    def close(self) -> None:
        self._file.close()


def read_nodes(directory: Path) -> tuple[NodeRecord, ...]:
    """Returns the last state of each node worker of a run, in the order in which they joined."""
    found = {entry.key: entry for entry in _entries(directory) if isinstance(entry, NodeRecord)}
    return tuple(found.values())


def read_launches(directory: Path) -> tuple[LaunchRecord, ...]:
    """Returns the last state of the launch of each session of a run that used a launcher."""
    return tuple({entry.session: entry for entry in _entries(directory) if isinstance(entry, LaunchRecord)}.values())


def read_cpu(directory: Path) -> dict[tuple[int, str], dict[str, list[CpuSample]]]:
    """Returns (session, name) of each node worker of a run -> process -> samples of its CPU use."""
    found: defaultdict[tuple[int, str], defaultdict[str, list[CpuSample]]] = defaultdict(lambda: defaultdict(list))
    for entry in _entries(directory):
        if isinstance(entry, NodeCpu):
            for process, samples in entry.cpu.items():
                found[entry.session, entry.name][process] += samples
    return {key: dict(processes) for key, processes in found.items()}


def clock_share(nodes: Iterable[NodeRecord], seconds: float) -> float:
    """Returns how uncertain the clocks of nodes make a rate over so many seconds: the greatest `clock_width_ms`, as a share of that time.

    If the time is that of several sessions, the greatest widths of the sessions are added.
    """
    widest: dict[int, float] = {}
    for each in nodes:
        widest[each.session] = max(widest.get(each.session, 0.0), each.clock_width_ms or 0.0)
    return fsum(widest.values()) / 1e3 / seconds if seconds else 0.0


def connect_times(nodes: Iterable[NodeRecord]) -> dict[str, float]:
    """Returns the `place` of a node worker of each machine -> its connect time in milliseconds, if latencies depend on the machine.

    That is so if the times differ by more than MAX_CONNECT_DIFFERENCE_MS. Otherwise returns an empty mapping. If a machine has
    several node workers, the least of their times counts.
    """
    nearest: dict[str, tuple[float, str]] = {}
    for each in nodes:
        if each.connect_ms is not None:
            own = each.connect_ms, each.place
            nearest[each.machine] = min(own, nearest.get(each.machine, own))
    known = {place: ms for ms, place in nearest.values()}
    return known if known and max(known.values()) - min(known.values()) > MAX_CONNECT_DIFFERENCE_MS else {}


def _entries(directory: Path) -> Iterator[NodeEntry]:
    """Yields the undamaged entries of the file. Yields nothing if there is none."""
    path = directory / FILE
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            name, fields = json_text.loads(opened(line))["entry"]
            yield codec.read(ENTRIES.kinds[name], fields)
        except (ValueError, TypeError, LookupError):
            continue
