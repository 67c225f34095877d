"""The trial rounds of `--agentbench-trials=auto`, which are added until more trials would not change the verdict of the gate."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial, trial_of
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.runs.journal import JournalTail
from pytest_agentbench.runs.results import InterimLook, RoundsResult
from pytest_agentbench.session.gate import Gate
from pytest_agentbench.stats.decisions import FIRST_LOOK
from pytest_agentbench.suites.suite import Suite


def refuse_endless(most: int | None, gate: Gate | None, *, plays_recording: bool) -> None:
    """Raises ConfigError if trial rounds are requested (at most `most`) but nothing could end them.

    Without a rule there is nothing to decide. Answers from a recording decide no rule, because they are the same in each round.
    """
    if most is None:
        return
    if plays_recording:
        raise ConfigError("--agentbench-trials=auto: answers from a recording are the same in each round; give a number of trials")
    if gate is None or not gate.interim_rules:
        raise ConfigError(
            "--agentbench-trials=auto runs rounds of trials until a rule about a score or a pass rate is decided, but there is none; "
            "add one with --agentbench-gate or --agentbench-baseline, or give a number of trials"
        )


class Rounds:
    """The trial rounds of a session (`--agentbench-trials=auto`); a pytest plugin in the controller.

    Tests read the first round. `planned` adds the second one at once, because the first interim look (a verdict between rounds) comes
    after it. After each further round `round_finished` judges the run, and adds another round unless the verdict stands (more trials
    would not change it). Pytest's test loop ends only when the rounds are over.

    `planned` is called in the thread of the pool connection, `round_finished` in a thread of its own.
    """

    def __init__(self, gate: Gate, most: int, suites: Mapping[str, Suite], directory: Path, notices: queue.SimpleQueue[str]) -> None:
        """`directory` is the run directory. `notices` gets a sentence for the user after each interim look."""
        self._gate, self._most, self._suites, self._directory, self._notices = gate, most, suites, directory, notices
        self._first: list[RolloutKey] = []  # Rollouts of the first round, which tests read
        self._looks: list[InterimLook] = []
        self._trials: dict[RolloutKey, Trial] = {}
        self._journal = JournalTail(directory)
        self._finished = threading.Event()

    def planned(self, keys: Sequence[RolloutKey]) -> list[RolloutKey]:
        """Takes the rollouts of the first round and returns those of the second one. The run is not judged between the two."""
        self._first = [*dict.fromkeys(keys)]
        return self._round(FIRST_LOOK)

    def round_finished(self, *, whole: bool) -> list[RolloutKey]:
        """Judges the run after a round and returns the rollouts of the next one.

        Returns an empty list if the verdict stands, if this was the last round, or if a rollout of this round will never have a record
        (`whole` is False).
        """
        if whole:
            self._looks.append(look := self._look(len(self._looks) + FIRST_LOOK))
            if not look.stands and look.round < self._most:
                self._say(look, "another round")
                return self._round(look.round + 1)
            self._say(look, "the verdict stands" if look.stands else "this was the last round")
        self._finished.set()
        return []

    def end(self) -> None:
        """Ends the rounds, so that the test loop stops waiting."""
        self._finished.set()

    def _round(self, number: int) -> list[RolloutKey]:
        return [key._replace(trial=number) for key in self._first]

    def _look(self, rounds: int) -> InterimLook:
        suites = {key.group: self._suites[key.suite] for key in self._first}
        facts = RunFacts(
            run=self._directory.name,
            scenarios={group: suite.dataset.size for group, suite in suites.items()},
            scales={group: suite.every_scale for group, suite in suites.items()},
            quarantined={group: tuple(each.scenario for each in suite.quarantine) for group, suite in suites.items()},
            unsupported={group: tuple(suite.unsupported) for group, suite in suites.items()},
            most_rounds=self._most,
            rounds=rounds,
        )
        self._read_on()
        return self._gate.look(Evidence.of(facts, self._trials.values()))

    def _read_on(self) -> None:
        """Reads the rollouts that were written to the journal since the previous interim look. No rollout is written meanwhile."""
        for each in self._journal.new():
            if each.kind == "scenario":
                self._trials[each.key] = trial_of(each)

    def _say(self, look: InterimLook, follows: str) -> None:
        self._notices.put(f"round {look.round} of {self._most}: {look.verdict}, {follows}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Keeps the session running until the rounds are over. An interrupted session does not wait."""
        result = yield
        if self._first:
            self._finished.wait()
        return result

    @property
    def summary(self) -> RoundsResult:
        """The result of the rounds for run.json."""
        last = self._looks[-1] if self._looks else None
        stands, ran = last is not None and last.stands, last.round if last else 0
        saved = (self._most - ran) * len(self._first) if stands else 0
        return RoundsResult(self._most, ran, stands, saved, tuple(self._looks))
