"""Comparisons of two arms, from literal rollouts to findings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import CacheHits
from pytest_agentbench.gate.ab import SuiteInArms, compare_arms
from pytest_agentbench.gate.evidence import latencies, trial_of
from pytest_agentbench.metrics.stopwatch import READ_TOO_LATE, Stopwatch
from pytest_agentbench.records import UNDECLARED, Chunk, Json, LLMCall, Rollout, Scale, Score
from pytest_agentbench.runs.results import ArmFacts, ArmsCompared
from pytest_agentbench.stats.latency import latency_limit
from pytest_agentbench.suites.arms import Arm, origins, parse_arms
from tests.frames import scenarios_of
from tests.made_runs import SCALES, run_of

ARMS = parse_arms("old=x,new=y")
MS = 1_000_000
BLOCK = 10  # rollouts of an arm that run before the other arm's


def suites_in(arms: Sequence[Arm], scale: Scale = SCALES["tsq"]) -> dict[str, SuiteInArms]:
    """Returns one suite under these arms."""
    return {"shop": SuiteInArms({"tsq": scale}, origins(("default",), arms))}


def rollout(arm: str, number: int, score: float | None, ttft_ms: float, **keys: Any) -> Rollout:
    """Returns a rollout with one call, whose only token arrives after `ttft_ms`. Arms alternate in blocks of ten."""
    block, place = divmod(number, BLOCK)
    turn = 2 * block + ((arm == "new") is (block % 4 in (0, 3)))
    start = (turn * BLOCK + place) * 1000 * MS
    first = start + int(ttft_ms * MS)
    usage: Json = {"prompt_tokens": 100, "completion_tokens": 1, "token_source": "usage", "cached_tokens": keys.pop("cached", 50)}
    call = LLMCall(start, start, first, (Chunk(first, "content"),), **usage)
    status = "agent_error" if score is None else "ok"
    scores = {} if score is None else {"tsq": Score(score)}
    known: dict[str, Any] = {"started_at": start / 1e9, "started_ns": start, "ended_ns": first, **keys}
    return Rollout("shop", f"s{number}", arm, 1, status, calls=(call,), scores=scores, **known)


def compared(
    *rollouts: Rollout,
    facts: ArmFacts | None = None,
    stopwatch: Stopwatch | None = None,
    blocks: Sequence[CacheBlock] = (),
    scale: Scale = SCALES["tsq"],
) -> ArmsCompared:
    asked = facts or ArmFacts(), blocks, stopwatch or Stopwatch(verdict="ok")
    return compare_arms(ARMS, suites_in(ARMS, scale), map(trial_of, rollouts), scenarios_of(*rollouts), *asked)


def both(change: float = 0.0, slower: float = 1.0) -> list[Rollout]:
    """Returns sixty noisy scenarios in both arms. The second arm's scores differ by `change`, its latencies by a factor."""
    noise = random.Random(1)
    return [
        rollout(arm, number, min(1, max(0, noise.uniform(0.4, 0.8) + by)), noise.uniform(10, 20) * factor)
        for arm, by, factor in (("old", 0.0, 1.0), ("new", change, slower))
        for number in range(60)
    ]


def findings(ab: ArmsCompared) -> dict[str, str]:
    return {each.metric: each.finding for each in ab.comparisons}


def test_a_slower_and_worse_arm_is_found() -> None:
    """An arm that is worse and twice as slow is reported as such, for quality and each latency. Swapped, it is better and faster."""
    ab = compared(*both(-0.3, 2.0))
    assert ("worse", "slower", "slower", "slower") == tuple(findings(ab)[name] for name in ("tsq", "ttft.p50", "e2e.p50", "rollout.p50"))
    (ttft,) = (each for each in ab.comparisons if each.metric == "ttft.p50")
    assert ttft.low is not None and ttft.high is not None
    assert 1.7 < ttft.low < 2 < ttft.high < 2.4
    assert ab.arms[1].busy_s == pytest.approx(2 * ab.arms[0].busy_s, rel=0.1)

    ab = compared(*both(0.3, 0.5))
    assert ("better", "faster") == (findings(ab)["tsq"], findings(ab)["ttft.p50"])


def test_equal_arms_do_not_differ() -> None:
    """Between equal arms no difference is shown. p90 needs more rollouts, and the reason says how many."""
    found = findings(compared(*both()))

    assert ("no difference shown",) * 3 == tuple(found[name] for name in ("tsq", "ttft.p50", "rollout.p50"))
    assert "inconclusive" == found["ttft.p90"] == found["tpot.p50"]


def test_an_agents_error_is_the_worst_score() -> None:
    """An agent error in one arm counts as score 0 there. Infra errors do not count."""
    half = [rollout("new", number, None if number % 2 else 1.0, 10) for number in range(60)]

    ab = compared(*(rollout("old", number, 1.0, 10) for number in range(60)), *half)

    assert "worse" == findings(ab)["tsq"]
    assert (1.0, 0.5) == (ab.comparisons[0].base, ab.comparisons[0].new)


@pytest.mark.parametrize(
    ("how", "quality", "reason"),
    [
        ({"facts": ArmFacts(failures={"new": "arm new: it is gone"})}, "inconclusive", "arm new: it is gone"),
        (
            {"stopwatch": Stopwatch(verdict="client-saturated")},
            "worse",
            "the client was saturated, so its timings describe the client, not the backend",
        ),
        (
            {"stopwatch": Stopwatch(verdict="warn", unusable=("ttft.p50",))},
            "worse",
            f"TTFT p50 is not usable: {READ_TOO_LATE}",
        ),
    ],
)
def test_unreliable_measurements_are_inconclusive(how: dict[str, Any], quality: str, reason: str) -> None:
    """If an arm was lost, its comparisons are inconclusive.

    If the timings are unreliable, only latencies are inconclusive. The numbers are still shown.
    """
    ab = compared(*both(-0.3, 2.0), **how)

    assert (quality, "inconclusive") == (findings(ab)["tsq"], findings(ab)["ttft.p50"])
    assert {reason} == {each.reason for each in ab.comparisons if each.metric == "ttft.p50"}
    assert all(each.low for each in ab.comparisons if each.metric == "ttft.p50")


def block(arm: str, hits: float, salt: str = "") -> CacheBlock:
    return CacheBlock(arm, 1, salt=salt, prefix_cache=CacheHits(hits / 100, hits, 100.0))


def test_a_different_cache_state_is_a_warning() -> None:
    """Hit ratios that differ by more than ten points (by server counters, or else by usage) cause a warning, as do unequal resets."""
    assert () == compared(*both(), blocks=[block("old", 50), block("new", 59)]).warnings
    (apart,) = compared(*both(), blocks=[block("old", 50), block("new", 61)]).warnings
    assert "50 % of the prompt tokens were hits in old, 61 % in new" in apart
    (by_usage,) = compared(rollout("old", 1, 1.0, 10, cached=10), rollout("new", 1, 1.0, 10, cached=90)).warnings
    assert "10 % of the prompt tokens were hits in old, 90 % in new" in by_usage
    (unequal,) = compared(*both(), blocks=[block("old", 50), block("new", 50, "[salt]")]).warnings
    assert "a text that prevents cache hits was put before the prompts of new" in unequal
    (order,) = compared(*both(), facts=ArmFacts(in_sequence=True)).warnings
    assert order.startswith("old ran before new")


def test_reports_comparisons_and_gates_have_one_percentile() -> None:
    """A percentile of the same calls is equal in the report, an A/B comparison, a gate's estimate, and numpy."""
    draw = random.Random(4)
    old, new = ([rollout(arm, number, 1.0, draw.lognormvariate(5, 0.5)) for number in range(101)] for arm in ("old", "new"))
    ab = compared(*old, *new)
    for q in (50, 90):
        expected = [float(np.percentile([each.duration_s * 1e3 for each in arm], q)) for arm in (old, new)]  # a call is its first token
        (finding,) = [each for each in ab.comparisons if each.metric == f"ttft.p{q}"]
        (report, gate) = ([each(arm, q) for arm in (old, new)] for each in (of_report, of_gate))

        assert finding.base is not None and finding.new is not None
        for found in ([finding.base, finding.new], report, gate):
            assert expected == pytest.approx(found)
        assert finding.low is not None and finding.high is not None
        assert finding.low < finding.new / finding.base < finding.high


def of_report(rollouts: list[Rollout], q: int) -> float:
    return float(getattr(run_of(*rollouts).performance.latency("ttft"), f"p{q}"))


def of_gate(rollouts: list[Rollout], q: int) -> float | None:
    return latency_limit(latencies(map(trial_of, rollouts), "ttft"), q, 1000.0).estimate


@pytest.mark.parametrize(
    ("scale", "finding"), [(SCALES["tsq"], "worse"), (Scale("lower", 0.0, 1.0, declared=True), "better"), (UNDECLARED, "inconclusive")]
)
def test_the_declared_scale_decides_about_an_arm(scale: Scale, finding: str) -> None:
    """The scorer declares whether lower scores are better. Without a worst value, an arm with agent errors is not judged."""
    last = rollout("new", 60, None if scale == UNDECLARED else 0.5, 15.0), rollout("old", 60, 0.5, 15.0)
    found = next(each for each in compared(*both(change=-0.3), *last, scale=scale).comparisons if each.metric == "tsq")

    assert finding == found.finding
    assert (scale == UNDECLARED) == found.reason.startswith("new: 1 of 61 rollouts ended as agent_error")
