"""attempts.jsonl: what happened to the attempts of a run, beside the journal of its finished rollouts.

The controller writes an entry when something changes that the next pool has to know. A pool that replaces a dead one, and the first
pool of a session that resumes a run, read the journal and this file with `read_attempts`, and continue from the state that it returns.

An entry contains no secret. An address for calls is named by its number, which is the part of its token before the dash, and an endpoint
by its URL.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, assert_never

from pytest_agentbench.lib import codec, json_text, messages
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey, split_calls
from pytest_agentbench.runs.journal import opened, sealed

FILE = "attempts.jsonl"
BLOCK = 1 << 16  # bytes that are read at a time to find the last line


@dataclass
class RolloutTally:
    """Numbers of rollouts that a stack was told of, of all pools of a session together."""

    labelled: int = 0  # attempts whose calls got a label; each has an id of its own
    announced: int = 0  # of them, those that the stack has seen, where it tells; elsewhere those with a call that was answered
    released: int = 0
    failed: int = 0  # releases that failed when their rollout ended; some may have worked at the session's end
    bypassed: int = 0  # releases that were answered like any call: by something that does not know of rollouts
    left: int = 0  # not released when the session ended


@dataclass(frozen=True)
class OpenLabel:
    """An id by which a stack knows a rollout that has not been released yet."""

    id: str
    url: str  # of the endpoint that has to be told when the rollout is over


@dataclass(frozen=True)
class RolloutsPlanned:
    """Written when a test process has sent the plan of the session."""

    keys: tuple[RolloutKey, ...]  # once for each test


@dataclass(frozen=True)
class RolloutRead:
    """Sent by the pool when a test gets its rollout. The next pool need not run it for that test."""

    key: RolloutKey


@dataclass(frozen=True)
class RoundAdded:
    """Written when trials are to run that no test asks for, and without keys when they are over."""

    keys: tuple[RolloutKey, ...]


@dataclass(frozen=True)
class AttemptBegun:
    """Sent by the pool when an attempt begins. Its rollout is in flight then, and a suspect if a part of the session dies."""

    key: RolloutKey
    began_ns: int  # monotonic nanoseconds of the pool


@dataclass(frozen=True)
class AttemptFailed:
    """Sent by the pool for an attempt that is followed by another one. The next pool continues with the following attempt."""

    key: RolloutKey
    attempt: Attempt
    interrupted: bool  # whether it failed because a part of the session died, which costs the rollout no retry


@dataclass(frozen=True)
class AddressOpened:
    """Sent by the pool before it opens an address at the taps. If the pool dies, the next one closes the address."""

    number: str  # the part of the address's token before the dash
    key: RolloutKey  # of the rollout whose calls are made there
    lent: bool  # whether a test process calls there, which outlives the pool and closes the address itself
    label: OpenLabel | None  # None if the stack is not told of rollouts
    tally: RolloutTally


@dataclass(frozen=True)
class AddressClosed:
    """Sent by the pool when it has closed an address at the taps. Until `LabelReleased` the next pool would have to release its label."""

    number: str
    calls: int  # LLM calls that the taps have told of
    unreleased: bool  # whether the stack is still to be told that the rollout is over
    tally: RolloutTally


@dataclass(frozen=True)
class LabelReleased:
    """Sent by the pool when the stack was told that a rollout is over."""

    id: str
    tally: RolloutTally


@dataclass(frozen=True)
class RunAlone:
    """Sent to the pool after the death of a part of the session. Nothing runs beside any of these rollouts."""

    keys: tuple[RolloutKey, ...]


@dataclass(frozen=True)
class EndRollout:
    """Sent to the pool when a rollout is to blame for the deaths of a part of the session. It ends like this, and does not run again."""

    rollout: Rollout  # if `ended_ns` is 0, only its key, status, reason and log are known; else only calls of judges can be missing


@dataclass(frozen=True)
class PoolDied:
    """Written when a pool has died. What was in flight was interrupted."""

    why: str


@dataclass(frozen=True)
class PrepareBlock:
    """Sent by the pool before a block of rollouts. The controller makes the arm ready, which may take minutes, and answers."""

    arm: str
    rollouts: int  # in the block


#: Entries that are messages of the pool. The controller writes them and does not answer.
PoolEntry = RolloutRead | AttemptBegun | AttemptFailed | AddressOpened | AddressClosed | LabelReleased | PrepareBlock
AttemptEntry = PoolEntry | RolloutsPlanned | RoundAdded | RunAlone | EndRollout | PoolDied
ENTRIES: messages.Messages[AttemptEntry] = messages.Messages(AttemptEntry)

#: Names of the entries that a later session continues with. All others are about the processes and tests of their own session.
LASTING = (AttemptBegun.__name__, AttemptFailed.__name__)


class Interruption(NamedTuple):
    """An attempt that was in flight when its pool died, and that no pool has noted as failed yet."""

    began_ns: int  # monotonic nanoseconds
    why: str

    def attempt(self, number: int, session: int, ended_ns: int, calls: Sequence[LLMCall] = ()) -> Attempt:
        """Returns the record of this attempt, with the calls that are known of it."""
        times = session, self.began_ns, max(self.began_ns, ended_ns)
        return Attempt(number, "infra_error", f"interrupted: {self.why}", *times, *split_calls(calls))


@dataclass
class AttemptState:
    """The state of a session's attempts according to the entries so far. `apply` takes the entries in the order in which they were written.

    A rollout whose attempt has begun is `in_flight` until the attempt has failed, or the rollout is over or recorded. If the pool dies
    before that, the attempt is `interrupted` until the next pool has noted it as failed.
    """

    plan: Counter[RolloutKey] | None = None  # rollout -> tests that have still to ask for it; None before there is a plan
    round: tuple[RolloutKey, ...] = ()  # trials that no test asks for, and that are not known to be over
    in_flight: dict[RolloutKey, int] = field(default_factory=dict)  # -> when its attempt began, monotonic nanoseconds
    interrupted: dict[RolloutKey, Interruption] = field(default_factory=dict)
    failed: dict[RolloutKey, list[AttemptFailed]] = field(default_factory=dict)  # of rollouts that have no record yet
    addresses: dict[str, AddressOpened] = field(default_factory=dict)  # number -> address that is open
    labels: dict[str, OpenLabel] = field(default_factory=dict)  # by their ids, of rollouts that are over, and not released
    tally: RolloutTally = field(default_factory=RolloutTally)
    alone: set[RolloutKey] = field(default_factory=set)  # rollouts beside which nothing else runs
    ends: dict[RolloutKey, Rollout] = field(default_factory=dict)  # rollouts that do not run again -> how they end
    blocks: int = 0  # blocks of rollouts that were begun
    interruptions: int = 0  # attempts that failed because a part of the session died
    unrecorded: int = 0  # LLM calls of which the taps told, and that are in no record
    damaged: list[str] = field(default_factory=list)  # sentences on lines that cannot be read

    def apply(self, entry: AttemptEntry) -> None:  # noqa: C901 - one branch for each entry
        """Takes the next entry."""
        match entry:
            case RolloutsPlanned(keys):
                self.plan = Counter(keys)
            case RolloutRead(key):
                if self.plan is not None:
                    self.plan.subtract([key])
            case RoundAdded(keys):
                self.round = keys
            case AttemptBegun(key, began_ns):
                self.in_flight[key] = began_ns
            case AttemptFailed(key):
                self.mark_over(key)
                self.failed.setdefault(key, []).append(entry)
                self.interruptions += entry.interrupted
            case PoolDied(why):
                self.interrupted |= {key: Interruption(began, why) for key, began in self.in_flight.items()}
                self.in_flight.clear()
            case RunAlone(keys):
                self.alone.update(keys)
            case EndRollout(rollout):
                self.ends[rollout.key] = rollout
            case PrepareBlock():
                self.blocks += 1
            case _:
                self.tally = entry.tally
                self._apply_to_addresses(entry)

    def _apply_to_addresses(self, entry: AddressOpened | AddressClosed | LabelReleased) -> None:
        match entry:
            case AddressOpened(number):
                self.addresses[number] = entry
            case AddressClosed(number):
                self.unrecorded += entry.calls
                address = self.addresses.pop(number, None)
                if entry.unreleased and address is not None and address.label is not None:
                    self.labels[address.label.id] = address.label
            case LabelReleased(id):
                self.labels.pop(id, None)
            case _:
                assert_never(entry)

    def mark_over(self, key: RolloutKey) -> None:
        """Takes down that no attempt of a rollout runs any more, whether or not there is a record of it."""
        self.in_flight.pop(key, None)
        self.interrupted.pop(key, None)

    def mark_recorded(self, key: RolloutKey, calls: int) -> None:
        """Takes down that a rollout is in the journal, with so many LLM calls in all its attempts."""
        self.failed.pop(key, None)
        self.unrecorded -= calls

    def end_session(self, number: int, last_ns: int) -> None:
        """Turns what was in flight at the end of an earlier session into failed attempts; `last_ns` is its last known moment."""
        unfinished = {key: Interruption(began, f"session {number} ended") for key, began in self.in_flight.items()} | self.interrupted
        self.in_flight, self.interrupted = {}, {}
        for key, interruption in unfinished.items():
            earlier = self.failed.setdefault(key, [])
            earlier.append(AttemptFailed(key, interruption.attempt(len(earlier) + 1, number, last_ns), interrupted=True))


def read_attempts(directory: Path, session: int, recorded: Mapping[RolloutKey, int], size: int | None = None) -> AttemptState:
    """Returns the state with which a new pool of a session begins: nothing is in flight.

    Args:
        directory: Directory of the run.
        session: Number of the session. Of the earlier ones only the attempts count.
        recorded: Rollout -> session of its last record. Attempts up to that session are in the record, so they are skipped.
        size: Bytes of the file that count; None: all.
    """
    state, number, last_ns = AttemptState(), 0, 0
    for of_session, entry in _entries(directory / FILE, session, size, state.damaged):
        if of_session != number:
            state.end_session(number, last_ns)
            number, last_ns = of_session, 0
        if isinstance(entry, AttemptBegun | AttemptFailed):
            last_ns = max(last_ns, entry.began_ns if isinstance(entry, AttemptBegun) else entry.attempt.ended_ns)
            if recorded.get(entry.key, 0) >= of_session:
                continue
        state.apply(entry)
    if number == session:
        state.apply(PoolDied("the pool died"))
    else:
        state.end_session(number, last_ns)
    return state


def _entries(path: Path, session: int, size: int | None, damaged: list[str]) -> Iterator[tuple[int, AttemptEntry]]:
    """Yields the entries of a log with their sessions, of other sessions only `LASTING` ones. A torn line at the end is left out.

    Adds a sentence to `damaged` for each line that cannot be read.
    """
    end = 0
    with path.open("rb") if path.exists() else io.BytesIO() as lines:
        for number, line in enumerate(lines, 1):
            end += len(line)
            if not line.endswith(b"\n") or (size is not None and end > size):
                return
            try:
                content = json_text.loads(opened(line[:-1]))
                of_session, (name, fields) = content["session"], content["entry"]
                if of_session == session or name in LASTING:
                    yield of_session, codec.read(ENTRIES.kinds[name], fields)
            except (ValueError, TypeError, LookupError) as error:
                damaged.append(f"line {number} of {path} is damaged, and is left out: {error}")


class AttemptLog:
    """The attempts.jsonl of a session, open for appending, and the state that its entries lead to. Safe to use from threads.

    - The lock of the journal keeps other sessions from writing to it.
    - Each entry reaches the operating system at once, so a process that is killed loses no complete entry. fsync is never called:
      after a power failure, rollouts without a record run again, without the attempts that were lost.
    - An incomplete last line, left by a killed session, is removed when the log is opened.
    - If an entry cannot be written, the user is told once, and the session continues. The state is complete even then.
    """

    def __init__(self, directory: Path, session: int, redact: Callable[[str], str], notify: Callable[[str], None]) -> None:
        """`notify` is given a sentence for the user."""
        self.path = directory / FILE
        self.state = AttemptState()  # of this session; entries of earlier ones are not in it
        self._session, self._redact, self._notify = session, redact, notify
        self._file = self.path.open("ab+", buffering=0)
        self._lock = threading.RLock()
        self._has_warned = False
        self.size = _remove_incomplete_line(self._file)  # bytes

    def append(self, entry: AttemptEntry) -> None:
        """Adds an entry, and applies it to the state."""
        line = json_text.dumps_any({"session": self._session, "entry": messages.header(entry)})
        line = sealed(self._redact(line.decode()).encode()) + b"\n"
        with self._lock:
            self.state.apply(entry)
            if self._file.closed:
                return
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "no space left")
                self.size += len(line)
            except OSError as error:
                os.ftruncate(self._file.fileno(), self.size)
                if not self._has_warned:
                    self._has_warned = True
                    self._notify(f"{self.path} cannot be written: {error}; if the pool dies, it is not known which attempts it had begun")

    @property
    def in_flight(self) -> set[RolloutKey]:
        """Rollouts whose attempts run."""
        with self._lock:
            return {*self.state.in_flight}

    def mark_over(self, key: RolloutKey) -> None:
        """Takes down that no attempt of a rollout runs any more."""
        with self._lock:
            self.state.mark_over(key)

    def mark_recorded(self, key: RolloutKey, calls: int) -> None:
        """Takes down that a rollout is in the journal, with so many LLM calls in all its attempts."""
        with self._lock:
            self.state.mark_recorded(key, calls)

    def close(self) -> None:
        """Closes the file. Entries that come later are not written."""
        with self._lock:
            self._file.close()


def _remove_incomplete_line(file: BinaryIO) -> int:
    """Removes an incomplete last line; returns the size of the file then, in bytes."""
    end = file.seek(0, os.SEEK_END)
    size = end
    while size:
        start = max(0, size - BLOCK)
        file.seek(start)
        if (newline := file.read(size - start).rfind(b"\n")) >= 0:
            size = start + newline + 1
            break
        size = start
    if size < end:
        file.truncate(size)
    return size
