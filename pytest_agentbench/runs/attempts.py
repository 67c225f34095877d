"""attempts.jsonl: the log of the attempts of a run. It complements the journal, which contains only finished rollouts.

The controller writes an entry when something changes that the next pool (process that runs rollouts) has to know. A pool that replaces a
dead one, and the first pool of a session that resumes a run, read the journal and this file with `read_attempts` and continue from the
returned state.

Entries contain no secrets. An address for calls is identified by its number (the part of its token before the dash), and an endpoint by
its URL.
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

from pytest_agentbench.lib import codec, json_text, wire
from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey, split_calls

FILE = "attempts.jsonl"
BLOCK = 1 << 16  # bytes per read when the last line is searched


@dataclass
class RolloutTally:
    """Counts of the attempts whose calls told the stack to which rollout they belong, for all pools of a session together."""

    labelled: int = 0  # attempts whose calls got a label; each label has its own id
    announced: int = 0  # labelled attempts that the stack has seen, or that had an answered call if it does not report them
    released: int = 0  # releases that the stack accepted
    failed: int = 0  # releases that failed when their rollout ended; some may have succeeded at the end of the session
    bypassed: int = 0  # releases that were answered like LLM calls, by a server that does not know rollouts
    left: int = 0  # attempts that were not released when the session ended


@dataclass(frozen=True)
class OpenLabel:
    """A label (the id by which a stack knows a rollout) for which no release (the message that the rollout has ended) has succeeded."""

    id: str  # id by which the stack knows the rollout
    url: str  # URL of the endpoint that gets the release


@dataclass(frozen=True)
class RolloutsPlanned:
    """An entry of the log: written when a test process has sent the rollouts that the tests of the session need."""

    keys: tuple[RolloutKey, ...]  # planned rollouts, each once per test that needs it


@dataclass(frozen=True)
class RolloutRead:
    """An entry of the log: sent by the pool when a test gets its rollout. The next pool need not run the rollout for that test."""

    key: RolloutKey


@dataclass(frozen=True)
class RoundAdded:
    """An entry of the log: a round of additional trials starts, or has ended if there are no keys. No test needs these rollouts."""

    keys: tuple[RolloutKey, ...]


@dataclass(frozen=True)
class AttemptBegun:
    """An entry of the log: sent by the pool when an attempt begins. From then on, the rollout is a suspect if a process dies."""

    key: RolloutKey
    began_ns: int  # start, monotonic nanoseconds


@dataclass(frozen=True)
class AttemptFailed:
    """An entry of the log: sent by the pool when an attempt has failed and will be repeated. The next pool begins with the repetition."""

    key: RolloutKey
    attempt: Attempt
    interrupted: bool  # whether it failed because a process of the session died; such an attempt does not count as a retry


@dataclass(frozen=True)
class AddressOpened:
    """An entry of the log: the pool will open an address (a URL for calls of a rollout). If it dies, the next pool closes the address."""

    number: str  # the part of the address's token before the dash
    key: RolloutKey  # rollout that makes calls at this address
    lent: bool  # whether a test process uses the address; it outlives the pool and closes the address itself
    label: OpenLabel | None  # None if rollouts are not announced to the stack
    tally: RolloutTally


@dataclass(frozen=True)
class AddressClosed:
    """An entry of the log: the pool has closed an address. If it then dies before `LabelReleased`, the next pool releases the label."""

    number: str  # number of the address
    calls: int  # LLM calls that the taps have reported
    unreleased: bool  # whether its label still has to be released
    tally: RolloutTally


@dataclass(frozen=True)
class LabelReleased:
    """An entry of the log: the pool has released a label, which means that it has told the stack that the rollout has ended."""

    id: str  # id of the label
    tally: RolloutTally


@dataclass(frozen=True)
class RunAlone:
    """An entry of the log: sent to the pool after a process of the session has died. From then on, each of these rollouts runs alone."""

    keys: tuple[RolloutKey, ...]


@dataclass(frozen=True)
class EndRollout:
    """An entry of the log: ends a rollout with this record, because it caused repeated deaths of a process or blocked the pool."""

    rollout: Rollout  # record; if `ended_ns` is 0 it has only key, status, reason and log, otherwise only calls of judges may be missing


@dataclass(frozen=True)
class PoolDied:
    """An entry of the log: written when a pool has died. The attempts that it was running were interrupted."""

    why: str  # reason of the death


@dataclass(frozen=True)
class PrepareBlock:
    """An entry of the log: sent by the pool before a block, which is a series of rollouts of one arm (a setting under comparison).

    The controller prepares the arm, which may take minutes, and then tells the pool whether it can run.
    """

    arm: str
    rollouts: int  # rollouts in the block


#: Entries that the pool sends as messages. The controller writes them and does not answer.
PoolEntry = RolloutRead | AttemptBegun | AttemptFailed | AddressOpened | AddressClosed | LabelReleased | PrepareBlock
AttemptEntry = PoolEntry | RolloutsPlanned | RoundAdded | RunAlone | EndRollout | PoolDied
ENTRIES: wire.Messages[AttemptEntry] = wire.Messages(AttemptEntry)

#: Names of the entries that matter in later sessions. All others concern the processes and tests of their own session.
LASTING = (AttemptBegun.__name__, AttemptFailed.__name__)


class Interruption(NamedTuple):
    """An attempt that was in flight when its pool died, and for which no AttemptFailed entry exists yet."""

    began_ns: int  # start of the attempt, monotonic nanoseconds
    why: str  # reason of the interruption

    def attempt(self, number: int, session: int, ended_ns: int, calls: Sequence[LLMCall] = ()) -> Attempt:
        """Returns the record of this attempt with its known calls."""
        times = session, self.began_ns, max(self.began_ns, ended_ns)
        return Attempt(number, "infra_error", f"interrupted: {self.why}", *times, *split_calls(calls))


@dataclass
class AttemptState:
    """The state of a session's attempts after the entries so far. `apply` takes the entries in the order in which they were written.

    A rollout is `in_flight` from the start of an attempt until the attempt has failed or the rollout has ended. If the pool dies before
    that, the attempt is `interrupted` until the next pool sends its AttemptFailed.
    """

    plan: Counter[RolloutKey] | None = None  # rollout -> number of tests that still need it; None before there is a plan
    round: tuple[RolloutKey, ...] = ()  # additional trials of the current round, which no test needs; empty between rounds
    in_flight: dict[RolloutKey, int] = field(default_factory=dict)  # rollout -> start of its attempt, monotonic nanoseconds
    interrupted: dict[RolloutKey, Interruption] = field(default_factory=dict)
    failed: dict[RolloutKey, list[AttemptFailed]] = field(default_factory=dict)  # rollout without a record -> its failed attempts
    addresses: dict[str, AddressOpened] = field(default_factory=dict)  # number -> open address
    labels: dict[str, OpenLabel] = field(default_factory=dict)  # id -> label of an ended rollout that was not released yet
    tally: RolloutTally = field(default_factory=RolloutTally)
    alone: set[RolloutKey] = field(default_factory=set)  # rollouts that have to run alone
    ends: dict[RolloutKey, Rollout] = field(default_factory=dict)  # rollout that does not run again -> its final record
    blocks: int = 0  # number of blocks of rollouts that have begun
    interruptions: int = 0  # number of attempts that failed because a process of the session died
    unrecorded: int = 0  # number of LLM calls that the taps have reported and that no record contains
    damaged: list[str] = field(default_factory=list)  # one sentence for each line that cannot be read

    def apply(self, entry: AttemptEntry) -> None:  # noqa: C901 - one branch for each entry
        """Updates the state with the next entry."""
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
        """Notes that no attempt of a rollout is running any more, whether it has a record or not."""
        self.in_flight.pop(key, None)
        self.interrupted.pop(key, None)

    def mark_recorded(self, key: RolloutKey, calls: int) -> None:
        """Notes that the journal contains a rollout; `calls` is the number of LLM calls in all its attempts."""
        self.failed.pop(key, None)
        self.unrecorded -= calls

    def end_session(self, number: int, last_ns: int) -> None:
        """Turns attempts that were in flight when an earlier session ended into failed ones, which ended at `last_ns`."""
        unfinished = {key: Interruption(began, f"session {number} ended") for key, began in self.in_flight.items()} | self.interrupted
        self.in_flight, self.interrupted = {}, {}
        for key, interruption in unfinished.items():
            earlier = self.failed.setdefault(key, [])
            earlier.append(AttemptFailed(key, interruption.attempt(len(earlier) + 1, number, last_ns), interrupted=True))


def read_attempts(directory: Path, session: int, recorded: Mapping[RolloutKey, int], size: int | None = None) -> AttemptState:
    """Returns the state with which a new pool of a session begins. Nothing is in flight in it.

    Args:
        directory: Directory of the run.
        session: Number of the session. Only entries on attempts are taken from earlier sessions.
        recorded: Rollout -> session of its last record. Attempts up to that session are part of the record, so they are skipped.
        size: Number of bytes to read. None reads the whole file.
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
    """Yields (session, entry) for each line. From other sessions only begun and failed attempts. Ignores an incomplete last line.

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
                damaged.append(f"line {number} of {path} is damaged and is ignored: {error}")


class AttemptLog:
    """The open attempts.jsonl of a session, and the state after its entries. Safe to use from threads.

    - Only one session at a time writes to it, because the journal is locked.
    - Each entry reaches the operating system at once, so a process that is killed loses no complete entry. fsync is never called:
      after a power failure, rollouts without a record run again, and their lost attempts are not counted.
    - An incomplete last line, left by a killed session, is removed when the log is opened.
    - If an entry cannot be written, the user gets one warning and the session continues. The state in memory stays complete.
    """

    def __init__(self, directory: Path, session: int, redact: Callable[[str], str], notify: Callable[[str], None]) -> None:
        """Opens the file. `notify` shows a sentence to the user."""
        self.path = directory / FILE
        self.state = AttemptState()  # state of this session, without entries of earlier ones
        self._session, self._redact, self._notify = session, redact, notify
        self._file = self.path.open("ab+", buffering=0)
        self._lock = threading.RLock()
        self._has_warned = False
        self.size = _remove_incomplete_line(self._file)  # bytes

    def append(self, entry: AttemptEntry) -> None:
        """Writes an entry and applies it to the state."""
        line = json_text.dumps_any({"session": self._session, "entry": wire.header(entry)})
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
                    self._notify(f"{self.path} cannot be written: {error}; if the pool dies, the next one will not know what it ran")

    @property
    def in_flight(self) -> set[RolloutKey]:
        """The rollouts with a running attempt."""
        with self._lock:
            return {*self.state.in_flight}

    def mark_over(self, key: RolloutKey) -> None:
        """Notes that no attempt of a rollout is running any more."""
        with self._lock:
            self.state.mark_over(key)

    def mark_recorded(self, key: RolloutKey, calls: int) -> None:
        """Notes that the journal contains a rollout; `calls` is the number of LLM calls in all its attempts."""
        with self._lock:
            self.state.mark_recorded(key, calls)

    def close(self) -> None:
        """Closes the file. Later entries change only the state."""
        with self._lock:
            self._file.close()


def _remove_incomplete_line(file: BinaryIO) -> int:
    """Removes an incomplete last line. Returns the new size of the file in bytes."""
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
