"""The time limit and the expected end of a study, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.optimize.expected_end import StudyClock
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.optimize.ranking import ComparedSettings
from pytest_agentbench.optimize.search import finished, open_study, search
from pytest_agentbench.records import Json
from tests.optimize.test_search import PLAN, RANGE, TERMS, KnownSpeeds

CONFIRMING = replace(PLAN, held_out=tuple("mnopq"), confirmation_trials=4)  # 40 rollouts


@dataclass
class Time:
    """A clock and the sessions that move it by 2 seconds for each rollout."""

    now: float = 100.0
    seconds: float = 0.0
    rollouts: int = 0

    def clock(self) -> float:
        return self.now

    def run(self, rollouts: int) -> None:
        self.rollouts += rollouts
        self.seconds += 2.0 * rollouts
        self.now += 2.0 * rollouts


class TimedSpeeds(KnownSpeeds):
    """Sessions that take time."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time = time

    def __call__(self, settings: Json, scenarios: Sequence[str], name: str) -> ComparedSettings:
        self._time.run(2 * len(scenarios))
        return super().__call__(settings, scenarios, name)


def clock_of(time: Time, plan: StudyPlan = CONFIRMING, before: int = 0, limit: float | None = None) -> StudyClock:
    return StudyClock(plan, time, before, limit, time.clock)


def test_expected_end() -> None:
    """The rest is that of the trials that are left, at the duration of those of this process, and the confirmation."""
    time = Time()
    watch = clock_of(time, before=3)
    assert 0.0 == watch.confirmation_s

    time.run(24)
    time.run(24)

    assert 80.0 == watch.confirmation_s
    assert 7 * 48.0 + 80.0 == watch.left_s(5)
    watch.limit = 300.0
    assert 300.0 - 96.0 == watch.left_s(5)
    watch.limit = 150.0
    assert watch.confirmation_s == watch.left_s(5)


def test_the_search_ends_before_the_limit() -> None:
    """The search begins no trial after which the confirmation would be later than the limit. Without a limit, it runs all."""
    for limit, trials in ((None, 12), (200.0, 3), (1.0, 1)):
        time, study = Time(), open_study(RANGE)
        watch = clock_of(time, limit=limit)

        search(study, RANGE, TERMS, CONFIRMING, TimedSpeeds(time), is_over=watch.is_over)

        assert trials == len(finished(study))
