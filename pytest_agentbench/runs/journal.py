"""rollouts.jsonl, the journal of a run: one line for each finished rollout. Lines are appended and never changed.

A session that resumes a run may run a rollout again. Then its last line counts, and the earlier ones stay in the file. A line begins
with a checksum and with the fields that an index needs, so 100,000 rollouts are indexed without parsing their records. If a record is
too large, its texts are truncated, but never its numbers and measurements.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, Self

import orjson

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import lock
from pytest_agentbench.lib.foreign import KIB, Sizes, cut, size_of, too_large
from pytest_agentbench.lib.json_text import BEGIN, REST, opened, sealed, whole_characters
from pytest_agentbench.records import Json, Rollout, RolloutKey, Score
from pytest_agentbench.runs.conversations import Transcripts

FILE = "rollouts.jsonl"
SHOWN = 5  # sentences on damage that are shown on a terminal
SYNC = 1.0  # least seconds between two calls of fsync; data survive the death of the process without it

# Possessive quantifiers, because a reason may have millions of characters, and backtracking would keep a state for each.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TEXT = rb"(" + _STRING + rb")"
_HEAD = re.compile(
    rb'{"suite":' + _TEXT + rb',"scenario":' + _TEXT + rb',"variant":' + _TEXT + rb',"trial":(\d+)'
    rb',"status":"(\w+)","reason":' + _STRING + rb',"session":(\d+),"content":(\{[^{}]*(?:\{[^{}]*\}[^{}]*)?\}),"kind":"(\w+)",'
)


class Entry(NamedTuple):
    """The position of a record in the journal, and the fields that an index keeps."""

    offset: int  # offset of the line in bytes
    size: int  # size of the line in bytes, without the newline
    status: str
    session: int
    content: Json  # hashes of the inputs that the rollout depends on
    kind: str


@dataclass
class JournalIndex:
    """The result of scanning a journal: where the last record of each rollout is, and what is damaged."""

    entries: dict[RolloutKey, Entry] = field(default_factory=dict)  # rollout -> its last record
    repeated: int = 0  # number of earlier records of rollouts that ran again
    damaged: list[str] = field(default_factory=list)  # one sentence for each damaged line
    whole: int = 0  # size in bytes up to the end of the last complete line
    truncated: int = 0  # size in bytes of an incomplete last line, left by a killed session


@dataclass(frozen=True)
class EarlierWork:
    """The rollouts of a run that have a record when a session, or one of its pools, begins."""

    kept: Mapping[RolloutKey, str] = field(default_factory=dict)  # rollout that does not run again -> its status
    again: frozenset[RolloutKey] = frozenset()  # rollouts that have to run again
    recorded: Mapping[RolloutKey, int] = field(default_factory=dict)  # rollout (kept or not) -> session of its last record


def earlier_work(index: JournalIndex, session: int, rerun: Collection[str]) -> EarlierWork:
    """Returns the finished rollouts of a run. Rollouts of earlier sessions that have one of the statuses `rerun` have to run again."""
    entries = {key: entry for key, entry in index.entries.items() if entry.kind == "scenario"}
    kept = {key: entry.status for key, entry in entries.items() if entry.session == session or entry.status not in rerun}
    return EarlierWork(kept, frozenset(entries.keys() - kept.keys()), {key: entry.session for key, entry in entries.items()})


def check_journal(directory: Path) -> None:
    """Raises ConfigError for a run without a journal, for example if only its run.json was kept."""
    if not (directory / FILE).is_file():
        raise ConfigError(f"{directory} has no {FILE}, so its rollouts cannot be read; choose a run that has one")


def read_index(directory: Path) -> JournalIndex:
    """Returns the index of a journal. Keeps only one line in memory at a time."""
    index = JournalIndex()
    contents: dict[bytes, Json] = {}
    with (directory / FILE).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                index.truncated = len(line)
                break
            whole = _entry(line[:-1], index.whole, contents)
            entries = [whole] if whole else [*_find_records(line, index.whole, contents)]
            if whole is None:
                index.damaged.append(f"line {number} of {directory / FILE} is damaged: {_damage_text(line, len(entries))}")
            for key, entry in entries:
                index.repeated += key in index.entries and entry.kind == "scenario"
                index.entries[key] = entry
            index.whole += len(line)
    return index


def _entry(line: bytes, offset: int, contents: dict[bytes, Json]) -> tuple[RolloutKey, Entry] | None:
    """Returns key and index entry of a line (without newline). None if it is not a record or its checksum does not match."""
    try:
        record = opened(line)
    except ValueError:
        return None
    place = offset, len(line)
    return _parse_head(record, place, contents) or _parse_fully(record, place)


def _find_records(line: bytes, offset: int, contents: dict[bytes, Json]) -> Iterator[tuple[RolloutKey, Entry]]:
    """Yields the undamaged records in a damaged line. If a newline was lost, the line contains two."""
    starts = [place.start() for place in re.finditer(re.escape(BEGIN), line)]
    for start, end in itertools.pairwise([*starts, len(line)]):
        candidates = (_entry(line[start:stop], offset + start, contents) for stop in (end - 1, end))
        yield from itertools.islice((each for each in candidates if each), 1)


def _damage_text(line: bytes, whole: int) -> str:
    """Returns a description of a damaged line, with the key of its rollout if that can be read. `whole` counts its undamaged records."""
    if whole:
        return f"it contains {whole} undamaged record{'s' if whole > 1 else ''}; the rest is ignored"
    if head := _HEAD.match(b"{" + line[REST:]):
        key = _key_of(head)
        return f"the record of {key} does not match its checksum and is ignored"
    return f"it contains no record and is ignored: {line[:40]!r}..."


def _key_of(head: re.Match[bytes]) -> RolloutKey | str:
    """Returns the key of a rollout from the first fields of its record (`head`), or the raw scenario if they are not valid JSON."""
    suite, scenario, variant, trial = head.groups()[:4]
    try:
        return RolloutKey(orjson.loads(suite), orjson.loads(scenario), orjson.loads(variant), int(trial))
    except ValueError:
        return repr(scenario)


def _parse_head(record: bytes, place: tuple[int, int], contents: dict[bytes, Json]) -> tuple[RolloutKey, Entry] | None:
    """Returns key and index entry from the first fields of a record. None if the fields have another order."""
    head = _HEAD.match(record)
    if head is None or isinstance(key := _key_of(head), str):
        return None
    status, session, content, kind = head.groups()[4:]
    if content not in contents:
        contents[content] = orjson.loads(content)
    return key, Entry(*place, sys.intern(status.decode()), int(session), contents[content], sys.intern(kind.decode()))


def _parse_fully(text: bytes, place: tuple[int, int]) -> tuple[RolloutKey, Entry] | None:
    """Parses a whole record and returns its key and index entry, or None if it is invalid. Slower than `_parse_head`."""
    try:
        record = rollout_of(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return record.key, Entry(*place, record.status, record.session, record.content, record.kind)


def rollout_of(line: str | bytes) -> Rollout:
    """Returns the rollout of a record. Raises ValueError that names the wrong field if the record is invalid."""
    try:
        return codec.read(Rollout, json.loads(line))
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None


def record_line(rollout: Rollout) -> bytes:
    """Returns a rollout as one line of JSON. Values from user code that JSON cannot represent are converted to text.

    Lone surrogates become U+FFFD, and NaN and infinities become null, so that the line is valid UTF-8 and valid JSON. The messages are left
    out if they are in messages.jsonl.
    """
    rollout = dataclasses.replace(rollout, messages=()) if rollout.conversation else rollout
    try:
        return orjson.dumps(codec.plain(rollout))
    except TypeError:  # objects in an agent's settings, lone surrogates, integers beyond 64 bits
        numbers = json.loads(json.dumps(codec.plain(rollout), default=str), parse_constant=lambda _: None)
        return whole_characters(json.dumps(numbers, ensure_ascii=False)).encode()


class Journal:
    """The open journal of a run (rollouts.jsonl): appends records and reads them back by rollout key. Safe to use from threads.

    - One session at a time: the constructor locks the file, and raises ConfigError if another session has the lock.
    - Lines are only appended. A rollout that runs again gets a second line, and the last line counts.
    - Each line begins with a CRC-32 of its record. Reading a line that was changed raises ValueError.
    - Each append reaches the operating system at once, so killing the process loses no complete record. fsync runs at most once a
      second (SYNC), so a power failure can lose the newest records. An incomplete last line is removed when the journal is opened.

    `index` describes the file as it was when it was opened; `append` does not update it.
    """

    def __init__(self, directory: Path) -> None:
        """Opens and locks the file, and removes an incomplete last line. Raises ConfigError if another session has the lock."""
        self.path = directory / FILE
        self._file = self.path.open("ab+", buffering=0)
        if not lock(self._file):
            self._file.close()
            raise ConfigError(f"another session is writing to {self.path}; wait until it ends")
        self.index = read_index(directory)
        if self.index.truncated:
            self._file.truncate(self.index.whole)
        self._places = {key: (entry.offset, entry.size) for key, entry in self.index.entries.items()}
        self._lock = Lock()
        self._synced = 0.0  # seconds, time.monotonic()

    def append(self, key: RolloutKey, record: bytes) -> None:
        """Appends a record: a JSON object without newlines. If the disk is full, raises OSError and removes the incomplete line."""
        line = sealed(record)
        with self._lock:
            offset = self._file.seek(0, 2)
            if self._file.write(line + b"\n") != len(line) + 1:
                self._file.truncate(offset)
                raise OSError(errno.ENOSPC, "no space left for a record", str(self.path))
            self._places[key] = offset, len(line)
            if (now := time.monotonic()) - self._synced >= SYNC:
                os.fsync(self._file.fileno())
                self._synced = now

    def line(self, key: RolloutKey) -> bytes:
        """Returns the record of a rollout. Raises KeyError if there is none, and ValueError if it was changed since it was written."""
        return opened(self._read(*self._places[key]))

    def earlier_record(self, key: RolloutKey) -> bytes:
        """Returns the record that a rollout had when the journal was opened, even after `forget`. Raises the errors of `line`."""
        entry = self.index.entries[key]
        return opened(self._read(entry.offset, entry.size))

    def _read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size) or b""

    def forget(self, key: RolloutKey) -> None:
        """Removes the record of a rollout from the lookup, because the rollout will run again. The file is not changed."""
        del self._places[key]

    def restore_file(self) -> None:
        """Writes the whole file again if it was deleted during the session. Raises FileExistsError if it exists."""
        with self._lock, self.path.open("xb") as file:
            self._file.seek(0)
            shutil.copyfileobj(self._file, file)

    def close(self) -> None:
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def summarize_damage(damaged: Sequence[str]) -> list[str]:
    """Returns the first SHOWN sentences on damaged lines, and one on the number of others."""
    more = len(damaged) - SHOWN
    return [*damaged[:SHOWN], *([f"{more} more lines are damaged"] if more > 0 else [])]


def _print_warning(sentence: str) -> None:
    print(f"agentbench: {sentence}", file=sys.stderr)  # noqa: T201 - scripts that read a journal should not miss damage


def read_journal(directory: Path, on_damage: Callable[[str], None] = _print_warning, after: int = 0) -> Iterator[Rollout]:
    """Yields the rollouts of a run in the order in which they ended, one in memory at a time.

    If a rollout ran several times, only its last record counts. An incomplete last line is ignored.

    Args:
        directory: Directory of the run.
        on_damage: Called with a sentence for each damaged line or record, which is skipped. The default prints it to stderr.
        after: Offset in bytes. Records before it are skipped.
    """
    index = read_index(directory)
    for sentence in index.damaged:
        on_damage(sentence)
    transcripts = Transcripts(directory, on_damage)
    with (directory / FILE).open("rb") as file:
        for key, entry in sorted(index.entries.items(), key=lambda item: item[1].offset):
            if entry.offset < after:
                continue
            file.seek(entry.offset)
            try:
                rollout = transcripts.completed(rollout_of(opened(file.read(entry.size))))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                on_damage(f"the record of {key} at byte {entry.offset:,} of {directory / FILE} cannot be read and is ignored: {error}")
            else:
                yield rollout


class JournalTail:
    """Reads the journal of a run that has not ended, part by part. Damaged lines are ignored, because the session reports them later."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offset = 0  # bytes that were read

    def new(self) -> Iterator[Rollout]:
        """Yields the rollouts since the last call that was read to its end. One that is recorded meanwhile may come again next time."""
        end = (self._directory / FILE).stat().st_size
        yield from read_journal(self._directory, lambda _: None, self._offset)
        self._offset = end


#: Fields with texts of agents, models and tools. LLM calls are not included, because timings are computed from them.
TEXTS = ("messages", "log", "drafts", "tool_calls", "final_state", "verification", "settings", "answer")

LONGEST = (256 * KIB, 16 * KIB, KIB)  # size limits of each text in bytes; the first that makes the record small enough is used
DISPENSABLE = ("messages", "drafts", "log", "final_state")  # fields that are dropped if the record is still too large, largest first


def limit_size(rollout: Rollout, sizes: Sizes) -> tuple[Rollout, bytes]:
    """Returns a rollout whose record has at most `sizes.record` bytes, and the record.

    If texts were truncated, the reason names their fields, and the status `ok` becomes `limit`. If the LLM calls alone are larger than
    the limit, the record stays too large.
    """
    line = record_line(rollout)
    if len(line) <= sizes.record:
        return rollout, line
    record, names = _smaller(json.loads(line), sizes.record)
    if not names:
        return rollout, line
    why = f"{too_large('record', len(line), sizes.record, 'record')}; cut: {', '.join(names)}"
    status = "limit" if rollout.status == "ok" else rollout.status
    reason = f"{rollout.reason}; {why}" if rollout.reason else why
    small = dataclasses.replace(codec.read(Rollout, record), status=status, reason=reason)
    return small, record_line(small)


def with_cut_reasons(rollout: Rollout, most: int) -> Rollout:
    """Returns a rollout whose reason, explanations and scorer errors have at most `most` bytes each.

    Readers that keep many rollouts in memory need this, because earlier versions did not limit these texts.
    """
    return dataclasses.replace(
        rollout,
        reason=cut(rollout.reason, most),
        scores={name: Score(score, score.parts, cut(score.explanation, most)) for name, score in rollout.scores.items()},
        score_errors={name: cut(error, most) for name, error in rollout.score_errors.items()},
    )


def _smaller(record: dict[str, Any], most: int) -> tuple[dict[str, Any], list[str]]:
    """Returns a record with shorter texts, and the names of the fields that were shortened or dropped."""
    before = {name: record[name] for name in TEXTS}
    for longest in LONGEST:
        record |= {name: _each_text(record[name], functools.partial(cut, most=longest)) for name in TEXTS}
        if _size(record) <= most:
            break
    for name in sorted(DISPENSABLE, key=lambda name: -_size(record[name])):
        if _size(record) > most:
            record[name] = type(record[name])() if record[name] is not None else None
    return record, [name for name in TEXTS if record[name] != before[name]]


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a JSON value in which `change` was applied to each string, but not to keys of objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(each, change) for each in value]
    if isinstance(value, dict):
        return {key: _each_text(each, change) for key, each in value.items()}
    return value


def _size(value: Any) -> int:
    """Returns the number of bytes of a JSON value on one line."""
    return size_of(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
