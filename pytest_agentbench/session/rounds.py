"""`--agentbench-trials=auto`: after each whole round of trials a look at the rules, and another round until the verdict stands.

Tests read the first round, and the second one runs with it, since looks begin there. Later rounds have no tests: the session waits for
them when its tests are over. A run that is gone on with looks again at what it has, and comes to the same rounds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial, trial_of
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.runs.journal import FILE, read_journal
from pytest_agentbench.runs.results import InterimLook, RoundsResult
from pytest_agentbench.session.gate import Gate
from pytest_agentbench.stats.decisions import FIRST_LOOK
from pytest_agentbench.suites.suite import Suite


def refuse_endless(most: int | None, gate: Gate | None) -> None:
    """Raises ConfigError where there are to be rounds of trials, so many at `most`, and no rule could end them."""
    if most is not None and (gate is None or not gate.looked_at):
        raise ConfigError(
            "--agentbench-trials=auto runs rounds of trials until a rule about a score or a pass rate is decided, and there is none: "
            "--agentbench-gate or --agentbench-baseline asks for one, or give a number of trials"
        )


class Rounds:
    """A pytest plugin, in the process that the user started; threads of the pool call `planned` and `rested`."""

    def __init__(self, gate: Gate, most: int, suites: Mapping[str, Suite], directory: Path, notices: queue.SimpleQueue[str]) -> None:
        """`directory` is the run's; into `notices` goes a sentence for the user on each look."""
        self._gate, self._most, self._suites, self._directory, self._notices = gate, most, suites, directory, notices
        self._first: list[RolloutKey] = []  # what tests read
        self._looks: list[InterimLook] = []
        self._trials: dict[RolloutKey, Trial] = {}
        self._read = 0  # bytes of the journal
        self._over = threading.Event()

    def planned(self, keys: Sequence[RolloutKey]) -> list[RolloutKey]:
        """The second round, which needs no look."""
        self._first = [*dict.fromkeys(keys)]
        return self._round(FIRST_LOOK)

    def rested(self, *, whole: bool) -> list[RolloutKey]:
        """The next round; nothing where the verdict stands, or a rollout of this round will never have a record."""
        if whole:
            self._looks.append(look := self._look(len(self._looks) + FIRST_LOOK))
            if not look.stands and look.round < self._most:
                self._say(look, "another round")
                return self._round(look.round + 1)
            self._say(look, "the verdict stands" if look.stands else "the last one")
        self._over.set()
        return []

    def end(self) -> None:
        """Nobody waits any more."""
        self._over.set()

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
        """Reads the records that were written since the last look. No record is written during a look."""
        end = (self._directory / FILE).stat().st_size
        for each in read_journal(self._directory, lambda _: None, self._read):  # what is damaged is told when the session ends
            if each.kind == "scenario":
                self._trials[each.key] = trial_of(each)
        self._read = end

    def _say(self, look: InterimLook, follows: str) -> None:
        self._notices.put(f"round {look.round} of {self._most}: {look.verdict}, {follows}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """The session goes on until the rounds are over, unless something has broken it off."""
        result = yield
        if self._first:
            self._over.wait()
        return result

    @property
    def summary(self) -> RoundsResult:
        """What became of the rounds."""
        last = self._looks[-1] if self._looks else None
        stands, ran = last is not None and last.stands, last.round if last else 0
        saved = (self._most - ran) * len(self._first) if stands else 0
        return RoundsResult(self._most, ran, stands, saved, tuple(self._looks))
