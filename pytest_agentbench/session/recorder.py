"""What the session writes down while it runs: the journal, redacted, and the few numbers that live progress needs."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import EVALUABLE, RolloutKey
from pytest_agentbench.rollouts.protocol import RolloutFinished
from pytest_agentbench.runs.journal import EarlierWork, Journal
from pytest_agentbench.runs.sessions import with_earlier

DURATIONS = "durations.json"  # beside the run directories: how long each rollout took last, for longest first


class RunRecorder:
    """Whom the pool reports to. `on_finished` gets each record as it was written; it is called in a thread."""

    def __init__(self, directory: Path, redact: Callable[[str], str], on_finished: Callable[[bytes], None]) -> None:
        self.journal = Journal(directory)
        self.path = self.journal.path
        self._redact, self._on_finished = redact, on_finished
        self.backend_needed = threading.Event()  # a test that needs the backend is known
        self.stored = EarlierWork()  # of earlier sessions of this run
        self.planned_keys = 0
        self.reused = 0  # of them, those that an earlier session ran
        self.selected: Mapping[str, int] = {}  # suite under a variant -> selected tests that want a rollout, skipped ones included
        self.began = 0.0  # seconds, time.monotonic(), when rollouts could run
        self.done = 0
        self.in_journal = 0
        self._ended: dict[RolloutKey, str] = {}  # rollouts of this session -> status
        self._digests: dict[RolloutKey, bytes] = {}  # digests of records as the pool gave them
        self.ran_again: set[RolloutKey] = set()  # of what an earlier session had recorded
        self.tokens = 0
        self.score_sums: dict[str, tuple[float, int]] = {}  # score -> sum, count
        self.durations: dict[str, float] = {}  # rollout -> seconds

    def planned(self, keys: int, stored: int, selected: Mapping[str, int]) -> None:
        """So many rollouts are wanted, of which so many are there already."""
        self.planned_keys, self.reused, self.selected, self.began = keys, stored, selected, time.monotonic()
        self.done += stored
        if keys > stored:
            self.backend_needed.set()

    def added(self, keys: int, stored: int) -> None:
        """So many more are wanted than tests ask for."""
        self.planned_keys += keys
        self.reused += stored
        self.done += stored
        if keys > stored:
            self.backend_needed.set()

    def rollouts_begin(self) -> None:
        self.began = time.monotonic()

    def finished(self, summary: RolloutFinished, line: bytes) -> bytes:
        """Journals a rollout; returns the line as it was written. One that comes again, since a pool died over it, is not written twice."""
        key = summary.key
        digest = hashlib.blake2b(line, digest_size=8).digest()
        if self._digests.get(key) == digest:
            return self.journal.line(key)
        line = self._redact(line.decode()).encode()
        if key in self.stored.again:
            line = with_earlier(line, self._earlier_line(key))
            self.ran_again.add(key)
        self.journal.append(key, line)
        self.in_journal += 1
        self._digests[key] = digest
        if summary.kind == "scenario":
            self._ended[key] = summary.status
            self._count(summary)
        self._on_finished(line)
        return line

    @property
    def kept(self) -> dict[RolloutKey, str]:
        """Rollouts of this run that stand, those of earlier sessions too -> their status."""
        return {**self.stored.kept, **self._ended}

    def recorded(self, key: RolloutKey) -> bytes:
        """The line of a finished rollout; raises KeyError when there is none, ValueError for one that something has damaged."""
        try:
            return self.journal.line(key)
        except ValueError as error:
            raise ValueError(f"the record of {key} in {self.path} is damaged: {error}; with --agentbench-resume it runs again") from error

    def _earlier_line(self, key: RolloutKey) -> bytes:
        """What an earlier session wrote; nothing where it was damaged since this one began."""
        try:
            return self.journal.before(key)
        except ValueError:
            return b""

    def _count(self, summary: RolloutFinished) -> None:
        self.done += 1
        self.tokens += summary.tokens
        for name, value in summary.scores.items():
            total, count = self.score_sums.get(name, (0.0, 0))
            self.score_sums[name] = total + value, count + 1
        if summary.status in EVALUABLE:
            self.durations[str(summary.key)] = summary.duration_s


def known_durations(reports: Path, backend: str) -> dict[str, float]:
    """Seconds that each rollout took the last time on this backend; empty when nothing is known."""
    try:
        known = read_json_file(reports / DURATIONS)[backend]
        return {str(name): float(seconds) for name, seconds in known.items()}
    except (ConfigError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # only a help for the order of rollouts


def remember_durations(reports: Path, backend: str, durations: dict[str, float]) -> None:
    """Keeps the durations of this run for the next one."""
    try:
        known = dict(read_json_file(reports / DURATIONS))
    except (ConfigError, ValueError, TypeError):
        known = {}
    known[backend] = {**known_durations(reports, backend), **{name: round(seconds, 4) for name, seconds in durations.items()}}
    write_whole(reports / DURATIONS, json.dumps(known))
