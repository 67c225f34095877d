"""Records finished rollouts while a session runs: redacts them, writes them to the journal, and counts them for the progress line."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.records import EVALUABLE, RolloutKey
from pytest_agentbench.rollouts.protocol import RolloutFinished
from pytest_agentbench.runs.conversations import Transcripts
from pytest_agentbench.runs.journal import EarlierWork, Journal
from pytest_agentbench.runs.message_file import MessageFile, with_changed_ids
from pytest_agentbench.runs.sessions import with_earlier

DURATIONS = "durations.json"  # File beside the run directories with the last duration of each rollout; the longest ones run first


#: Statuses that the progress line counts as errors.
ERRORS = ("agent_error", "infra_error")


class RunRecorder:
    """Writes the rollouts of a session to the journal, and has the counts that progress and the summary need.

    The controller calls it in the thread that reads the pool's messages. The same thread calls `on_finished` with each written record.
    """

    def __init__(self, directory: Path, redact: Callable[[str], str], on_finished: Callable[[bytes], None]) -> None:
        self.journal = Journal(directory)
        self.messages = MessageFile(directory, redact)
        self._transcripts = Transcripts(directory, lambda _: None)  # What is missing is said when the run is read.
        self.path = self.journal.path
        self._redact, self._on_finished = redact, on_finished
        self.backend_needed = threading.Event()  # Set when a selected test needs the backend
        self.stored = EarlierWork()  # Records of earlier sessions of this run
        self.planned_keys = 0
        self.reused = 0  # Planned rollouts that an earlier session ran
        self.selected: Mapping[str, int] = {}  # suite under a variant -> selected tests that read a rollout, skipped ones included
        self.began = 0.0  # Start of the rollouts in seconds, time.monotonic()
        self.done = 0
        self.in_journal = 0
        self._ended: dict[RolloutKey, str] = {}  # rollouts of this session -> status
        self._digests: dict[RolloutKey, bytes] = {}  # Digests of records before redaction
        self.ran_again: set[RolloutKey] = set()  # Rollouts that an earlier session had recorded and that ran again
        self.errors = 0  # Rollouts of this session that ended with an error
        self.tokens = 0
        self.score_sums: dict[str, tuple[float, int]] = {}  # score -> sum, count
        self.durations: dict[str, float] = {}  # rollout -> seconds

    def planned(self, keys: int, stored: int, selected: Mapping[str, int]) -> None:
        """Sets the number of planned rollouts, of which `stored` were recorded by earlier sessions.

        `selected`: `suite` or `suite-variant` -> number of selected tests.
        """
        self.planned_keys, self.reused, self.selected, self.began = keys, stored, selected, time.monotonic()
        self.done += stored
        if keys > stored:
            self.backend_needed.set()

    def added(self, keys: int, stored: int) -> None:
        """Adds rollouts that no test reads (further trial rounds), of which `stored` were recorded by earlier sessions."""
        self.planned_keys += keys
        self.reused += stored
        self.done += stored
        if keys > stored:
            self.backend_needed.set()

    def rollouts_begin(self) -> None:
        self.began = time.monotonic()

    def finished(self, summary: RolloutFinished, body: bytes) -> bytes:
        """Writes a rollout to the journal, and its requests and replies to messages.jsonl. Returns the record with its transcript.

        A record that a new pool sends again, because the old one died before it got the answer, is not written twice.
        """
        key = summary.key
        line, *messages = body.split(b"\n")
        digest = hashlib.blake2b(line, digest_size=8).digest()
        if self._digests.get(key) == digest:
            return self._transcripts.completed_line(self.journal.line(key))
        changed = self.messages.add(messages)
        line = with_changed_ids(self._redact(line.decode()).encode(), changed)
        if key in self.stored.again:
            line = with_earlier(line, self._earlier_line(key))
            self.ran_again.add(key)
        self.journal.append(key, line)
        self.in_journal += 1
        self._digests[key] = digest
        if summary.kind == "scenario":
            self._ended[key] = summary.status
            self._count(summary)
        whole = self._transcripts.completed_line(line)
        self._on_finished(whole)
        return whole

    def close(self) -> None:
        """Closes the journal and messages.jsonl."""
        self.messages.close()
        self.journal.close()

    def restore_files(self) -> None:
        """Writes the journal and messages.jsonl again after they were deleted during the session. Raises FileExistsError if one exists."""
        self.messages.restore_file()
        self.journal.restore_file()

    @property
    def kept(self) -> dict[RolloutKey, str]:
        """Status of each rollout of this run that does not run again, earlier sessions included."""
        return {**self.stored.kept, **self._ended}

    @property
    def saved_note(self) -> str:
        """A line about saved rollouts that is appended to a reason for failure. Empty if none is saved."""
        count = self.in_journal
        return f"\n{count} finished rollout{'s are' if count > 1 else ' is'} saved in {self.path}" if count else ""

    def recorded(self, key: RolloutKey) -> bytes:
        """Returns the record of a rollout with its transcript. Raises KeyError if there is none, and ValueError if it is damaged."""
        try:
            return self._transcripts.completed_line(self.journal.line(key))
        except ValueError as error:
            raise ValueError(f"the record of {key} in {self.path} is damaged: {error}; run it again with --agentbench-resume") from error

    def _earlier_line(self, key: RolloutKey) -> bytes:
        """Returns the line that an earlier session wrote, or an empty line if it was damaged since this session started."""
        try:
            return self.journal.earlier_record(key)
        except ValueError:
            return b""

    def _count(self, summary: RolloutFinished) -> None:
        self.done += 1
        self.errors += summary.status in ERRORS
        self.tokens += summary.tokens
        for name, value in summary.scores.items():
            total, count = self.score_sums.get(name, (0.0, 0))
            self.score_sums[name] = total + value, count + 1
        if summary.status in EVALUABLE:
            self.durations[str(summary.key)] = summary.duration_s


def known_durations(reports: Path, backend: str) -> dict[str, float]:
    """Returns the seconds that each rollout took in its last run on this backend. Empty if no valid file in `reports` has them."""
    try:
        known = read_json_file(reports / DURATIONS)[backend]
        return {str(name): float(seconds) for name, seconds in known.items()}
    except (ConfigError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # Durations only improve the order of rollouts.


def remember_durations(reports: Path, backend: str, durations: dict[str, float]) -> None:
    """Saves the durations of this run's rollouts for later sessions."""
    try:
        known = dict(read_json_file(reports / DURATIONS))
    except (ConfigError, ValueError, TypeError):
        known = {}
    known[backend] = {**known_durations(reports, backend), **{name: round(seconds, 4) for name, seconds in durations.items()}}
    write_whole(reports / DURATIONS, json.dumps(known))
