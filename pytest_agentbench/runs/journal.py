"""rollouts.jsonl: one line per finished rollout, appended and flushed as it ends; a line that stands there is never written again.

A session that goes on with a run may run a rollout again: then its last line counts, and the earlier ones stay for whoever looks. A
line starts with a checksum of the rest, and with what an index needs, so that finding 100,000 rollouts parses no body. The texts of a
record that is too large are cut, its numbers and its measurements never.
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
from zlib import crc32

import orjson

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import lock
from pytest_agentbench.lib.foreign import KIB, Sizes, cut, size_of, too_large
from pytest_agentbench.lib.json_text import whole_characters
from pytest_agentbench.records import Json, Rollout, RolloutKey, Score

FILE = "rollouts.jsonl"
SHOWN = 5  # sentences on damage that a terminal gets
SYNC = 1.0  # seconds between two orders to the disk; what a process wrote survives its own death without them

_BEGIN, _SEALED = b'{"crc":"', b'",'  # around the eight digits with which each line begins
_REST = len(_BEGIN) + 8 + len(_SEALED)  # where its record goes on

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # Possessive: a reason may have millions of characters, and each would keep a place to return to.
_TEXT = rb"(" + _STRING + rb")"
_HEAD = re.compile(
    rb'{"suite":' + _TEXT + rb',"scenario":' + _TEXT + rb',"variant":' + _TEXT + rb',"trial":(\d+)'
    rb',"status":"(\w+)","reason":' + _STRING + rb',"session":(\d+),"content":(\{[^{}]*(?:\{[^{}]*\}[^{}]*)?\}),"kind":"(\w+)",'
)


class Entry(NamedTuple):
    """Where a record is, and the little that is known without reading it."""

    offset: int  # bytes
    size: int  # bytes, without the newline
    status: str
    session: int
    content: Json  # hashes of what the rollout depends on
    kind: str


@dataclass
class JournalIndex:
    """The records of a journal: the last one of each rollout."""

    entries: dict[RolloutKey, Entry] = field(default_factory=dict)
    repeated: int = 0  # rollouts that ran again: their earlier records do not count
    damaged: list[str] = field(default_factory=list)  # sentences on lines that are no records
    whole: int = 0  # bytes up to the end of the last line
    truncated: int = 0  # bytes after it: a record that was being written when the session was killed


@dataclass(frozen=True)
class EarlierWork:
    """The rollouts of a run that have a record, when a session or one of its pools begins."""

    kept: Mapping[RolloutKey, str] = field(default_factory=dict)  # those that do not run again -> their status
    again: frozenset[RolloutKey] = frozenset()  # those that are to run again
    recorded: Mapping[RolloutKey, int] = field(default_factory=dict)  # all of them -> session of their last record


def earlier_work(index: JournalIndex, session: int, rerun: Collection[str]) -> EarlierWork:
    """Returns what is done of a run. Records of earlier sessions with one of the statuses `rerun` do not count in this session."""
    entries = {key: entry for key, entry in index.entries.items() if entry.kind == "scenario"}
    kept = {key: entry.status for key, entry in entries.items() if entry.session == session or entry.status not in rerun}
    return EarlierWork(kept, frozenset(entries.keys() - kept.keys()), {key: entry.session for key, entry in entries.items()})


def sealed(record: bytes) -> bytes:
    """A record as it stands in a line of a journal: in front the CRC-32 of what is behind it, so that no byte changes unseen."""
    return b"%b%08x%b%b" % (_BEGIN, crc32(record[1:]), _SEALED, record[1:])


def opened(line: bytes) -> bytes:
    """The record in a line without its newline; raises ValueError where a byte is not what was written."""
    if line[:_REST] != b"%b%08x%b" % (_BEGIN, crc32(line[_REST:]), _SEALED):
        raise ValueError("it is not as it was written")
    return b"{" + line[_REST:]


def check_journal(directory: Path) -> None:
    """Raises ConfigError for a run without a journal, such as one of which only run.json was kept."""
    if not (directory / FILE).is_file():
        raise ConfigError(f"{directory} has no {FILE}, so there is nothing to read of its rollouts; name a run that has one")


def read_index(directory: Path) -> JournalIndex:
    """Finds all records, one line in memory at a time."""
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
    """What an index knows of a line without its newline; None when it is no record, or not as it was written."""
    try:
        record = opened(line)
    except ValueError:
        return None
    place = offset, len(line)
    return _parse_head(record, place, contents) or _parse_fully(record, place)


def _find_records(line: bytes, offset: int, contents: dict[bytes, Json]) -> Iterator[tuple[RolloutKey, Entry]]:
    """The whole records in a damaged line: where a newline was lost, two are in one."""
    starts = [place.start() for place in re.finditer(re.escape(_BEGIN), line)]
    for start, end in itertools.pairwise([*starts, len(line)]):
        candidates = (_entry(line[start:stop], offset + start, contents) for stop in (end - 1, end))
        yield from itertools.islice((each for each in candidates if each), 1)


def _damage_text(line: bytes, whole: int) -> str:
    """What is wrong with a line, and whose record it was as far as that can still be read."""
    if whole:
        return f"{whole} whole record{'s are' if whole > 1 else ' is'} in it, and kept; the rest is left out"
    if head := _HEAD.match(b"{" + line[_REST:]):
        key = _key_of(head)
        return f"the record of {key} is not as it was written, and is left out"
    return f"there is no record in it, and it is left out: {line[:40]!r}..."


def _key_of(head: re.Match[bytes]) -> RolloutKey | str:
    """Of a record; the letters themselves where they are no JSON."""
    suite, scenario, variant, trial = head.groups()[:4]
    try:
        return RolloutKey(orjson.loads(suite), orjson.loads(scenario), orjson.loads(variant), int(trial))
    except ValueError:
        return repr(scenario)


def _parse_head(record: bytes, place: tuple[int, int], contents: dict[bytes, Json]) -> tuple[RolloutKey, Entry] | None:
    """The entry of a record by its first fields; None where these are others."""
    head = _HEAD.match(record)
    if head is None or isinstance(key := _key_of(head), str):
        return None
    status, session, content, kind = head.groups()[4:]
    if content not in contents:
        contents[content] = orjson.loads(content)
    return key, Entry(*place, sys.intern(status.decode()), int(session), contents[content], sys.intern(kind.decode()))


def _parse_fully(text: bytes, place: tuple[int, int]) -> tuple[RolloutKey, Entry] | None:
    """The same for any record, by reading all of it; None when it is none."""
    try:
        record = rollout_of(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return record.key, Entry(*place, record.status, record.session, record.content, record.kind)


def rollout_of(line: str | bytes) -> Rollout:
    """Returns the rollout of a line of rollouts.jsonl; raises ValueError for another line, which names the field that is wrong."""
    try:
        return codec.read(Rollout, json.loads(line))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def record_line(rollout: Rollout) -> bytes:
    """A rollout as JSON on one line. What the user's code left in it need not be JSON; it is then written as text.

    Halves of characters, which no UTF-8 file holds, become U+FFFD, and NaN and infinities null, which JSON has none of, so that every
    reader of the line can write what it reads.
    """
    try:
        return orjson.dumps(codec.plain(rollout))
    except TypeError:  # objects in an agent's settings, lone surrogates, integers beyond 64 bits
        numbers = json.loads(json.dumps(codec.plain(rollout), default=str), parse_constant=lambda _: None)
        return whole_characters(json.dumps(numbers, ensure_ascii=False)).encode()


class Journal:
    """The journal of one run, open for appending; finds a written rollout again by its key. Safe to use from threads."""

    def __init__(self, directory: Path) -> None:
        """Cuts off a record that was torn by a kill; raises ConfigError when another session writes to this journal."""
        self.path = directory / FILE
        self._file = self.path.open("ab+", buffering=0)
        if not lock(self._file):
            self._file.close()
            raise ConfigError(f"another session is writing to {self.path}; wait for its end")
        self.index = read_index(directory)
        if self.index.truncated:
            self._file.truncate(self.index.whole)
        self._places = {key: (entry.offset, entry.size) for key, entry in self.index.entries.items()}
        self._lock = Lock()
        self._synced = 0.0  # seconds, time.monotonic()

    def append(self, key: RolloutKey, record: bytes) -> None:
        """Adds one record: a JSON object without a newline. Raises OSError, and leaves no torn record, when the disk is full."""
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
        """The record of a rollout; raises KeyError when none was written, ValueError where it is not as it was written."""
        return opened(self._read(*self._places[key]))

    def earlier_record(self, key: RolloutKey) -> bytes:
        """The record of a rollout that was there when this was opened, forgotten or not; raises as `line` does."""
        entry = self.index.entries[key]
        return opened(self._read(entry.offset, entry.size))

    def _read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size) or b""

    def forget(self, key: RolloutKey) -> None:
        """As if the rollout had not been written: it is to run again."""
        del self._places[key]

    def restore_file(self) -> None:
        """Writes the whole file once more, where somebody has removed it."""
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
    """Sentences on damage for a terminal: the first ones, and how many more there are."""
    more = len(damaged) - SHOWN
    return [*damaged[:SHOWN], *([f"{more} more lines are damaged"] if more > 0 else [])]


def _print_warning(sentence: str) -> None:
    print(f"agentbench: {sentence}", file=sys.stderr)  # noqa: T201 - whoever reads a journal in a script should hear of it


def read_journal(directory: Path, on_damage: Callable[[str], None] = _print_warning, after: int = 0) -> Iterator[Rollout]:
    """The rollouts of a run, one at a time, in the order in which they ended; of one that ran in several sessions the last record.

    A last line torn by a kill is left out; so is a line that is no record, of which `on_damage` is told. Records before the byte `after`
    are left out as well.
    """
    index = read_index(directory)
    for sentence in index.damaged:
        on_damage(sentence)
    with (directory / FILE).open("rb") as file:
        for key, entry in sorted(index.entries.items(), key=lambda item: item[1].offset):
            if entry.offset < after:
                continue
            file.seek(entry.offset)
            try:
                rollout = rollout_of(opened(file.read(entry.size)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                on_damage(f"the record of {key} at byte {entry.offset:,} of {directory / FILE} cannot be read, and is left out: {error}")
            else:
                yield rollout


#: Fields with texts of agents, models and tools. LLM calls are not among them, because timings are computed from them.
TEXTS = ("messages", "log", "drafts", "tool_calls", "final_state", "verification", "settings", "answer")

LONGEST = (256 * KIB, 16 * KIB, KIB)  # bytes that are kept of each text; the first one that makes the record small enough is used
DISPENSABLE = ("messages", "drafts", "log", "final_state")  # fields that are dropped if the record is still too large, largest first


def limit_size(rollout: Rollout, sizes: Sizes) -> tuple[Rollout, bytes]:
    """Returns a rollout of at most `sizes.record` bytes, and its record. What was cut is named in its reason, and `ok` becomes `limit`.

    The record remains larger if LLM calls alone fill it.
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
    """Returns a rollout whose reason, explanations and errors of scorers have `most` bytes at most, as in a session.

    Readers that keep many rollouts in memory need it, because earlier versions wrote these texts at any size.
    """
    return dataclasses.replace(
        rollout,
        reason=cut(rollout.reason, most),
        scores={name: Score(score, score.parts, cut(score.explanation, most)) for name, score in rollout.scores.items()},
        score_errors={name: cut(error, most) for name, error in rollout.score_errors.items()},
    )


def _smaller(record: dict[str, Any], most: int) -> tuple[dict[str, Any], list[str]]:
    """Returns a record with shorter texts, and the names of the fields in which texts were cut or which were dropped."""
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
    """Returns a JSON value with each text in it changed; keys of objects are kept."""
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
