"""One function makes a Run of rollouts and of what is known beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.records import LLMCall, Rollout, Score
from pytest_agentbench.runs.builder import AskedSuite, Tallies, build_run
from pytest_agentbench.runs.contents import Imported, Run, SessionFacts
from pytest_agentbench.suites.suite import Scenario
from tests.made_runs import SHOP, session_facts

SCENARIOS = tuple(Scenario(f"s-{number}", ({"role": "user", "content": "A lamp?"},)) for number in range(2))
ASKED = AskedSuite("shop", replace(SHOP, scenarios=SCENARIOS), "default", {"tsq.mean": 0.8})


def rollout(number: int, score: float | None, started_ns: int = 0, ended_ns: int = 0) -> Rollout:
    status, scores = ("ok", {"tsq": Score(score)}) if score is not None else ("infra_error", {})
    made = Rollout("shop", f"s-{number}", "default", 1, status, scores=scores, calls=(LLMCall(0, 0, 10),))
    return replace(made, started_ns=started_ns, ended_ns=ended_ns)


def built(*rollouts: Rollout, asked: AskedSuite = ASKED, facts: SessionFacts | None = None) -> Run:
    tallies = Tallies(Performance())
    for each in rollouts:
        tallies.add(each, "tsq")
    return build_run(facts or session_facts(), [asked], tallies)


def test_nothing_measured() -> None:
    """Where no rollout was measured, no threshold is known to hold; where there is none, nothing is missed."""
    assert ("shop",) == built(rollout(0, None)).unknown_suites
    assert () == built(rollout(0, 0.0)).unknown_suites
    assert () == built(asked=replace(ASKED, thresholds={})).unknown_suites


def test_what_is_known_stays_as_it_is() -> None:
    """The builder adds what rollouts say, and changes nothing else; a run is what is known of the next one."""
    facts = session_facts(id="one", resume="pytest --agentbench-resume=one")
    run = built(rollout(0, 1.0), facts=facts)

    assert facts.facts() == run.facts()
    assert run == built(rollout(0, 1.0), facts=run)


@pytest.mark.parametrize(("ended_ns", "span_s"), [(2_000_000_000, 1.0), (0, 0.0)])
def test_a_rollout_without_times(ended_ns: int, span_s: float) -> None:
    """It is counted, and is in no timing: a span from 1970 on would be in every rate."""
    run = built(rollout(0, 1.0, started_ns=1_000_000_000 if ended_ns else 0, ended_ns=ended_ns))

    assert (1, span_s) == (run.suites["shop"].rollouts["ok"], run.performance.span_s)


@pytest.mark.parametrize(("verdict", "known"), [("warn", True), (None, False)])
def test_nobody_knows_who_had_the_time(verdict: str | None, known: bool) -> None:
    """Of another tool's results it is told only where that tool took the times of calls."""
    imported = Imported("nat", str(Path("job")), "", "", (), {}, ())
    facts = session_facts(imported=imported, stopwatch=Stopwatch(verdict=verdict))

    run = built(rollout(0, 1.0, started_ns=10, ended_ns=2_000), facts=facts)

    assert known == (run.performance.split is not None)
