"""Comparisons of more than two arms with the first one, from literal rollouts to findings."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import CacheHits
from pytest_agentbench.gate.ab import compare_arms
from pytest_agentbench.gate.evidence import trial_of
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import Chunk, LLMCall, Rollout, Score
from pytest_agentbench.rollouts.pool.blocks import order
from pytest_agentbench.runs.nodes import NodeRecord
from pytest_agentbench.runs.results import ArmFacts, ArmsCompared, MetricCompared
from pytest_agentbench.suites.arms import parse_arms
from tests.frames import scenarios_of
from tests.gate.test_ab import suites_in

ARMS = parse_arms("a=x,b=y,c=z")
NAMES = [arm.name for arm in ARMS]
MS = 1_000_000
ROUNDS, SIZE = 10, 6  # rounds of blocks, and rollouts in each block


def rollout(arm: str, number: int, turn: int, score: float, ttft_ms: float) -> Rollout:
    """Returns a rollout with one call, whose only token arrives after this time, in a block of its arm."""
    start = (turn * SIZE + number % SIZE) * 1000 * MS
    first = start + int(ttft_ms * MS)
    call = LLMCall(start, start, first, (Chunk(first, "content"),), prompt_tokens=100, completion_tokens=1, token_source="usage")
    times: dict[str, Any] = {"started_at": start / 1e9, "started_ns": start, "ended_ns": first}
    return Rollout("shop", f"s{number}", arm, 1, "ok", calls=(call,), scores={"tsq": Score(score)}, **times)


def compared(
    slower: dict[str, float],
    lower: dict[str, float],
    facts: ArmFacts | None = None,
    blocks: tuple[CacheBlock, ...] = (),
    slo: dict[str, float] | None = None,
    **how: Any,
) -> ArmsCompared:
    """Returns sixty scenarios under three alternating arms, some of which are slower by a factor or score less."""
    noise = random.Random(2)
    rollouts = []
    for number in range(ROUNDS * SIZE):
        for place, at in enumerate(order(3, number // SIZE)):
            arm = NAMES[at]
            if facts and arm in facts.failures:
                continue
            score = noise.uniform(0.4, 0.8) - lower.get(arm, 0.0)
            turn = number // SIZE * 3 + place
            rollouts.append(rollout(arm, number, turn, score, noise.uniform(10, 20) * slower.get(arm, 1.0)))
    part, asked = scenarios_of(*rollouts, terms=Terms(objectives_of(slo or {}))), (facts or ArmFacts(), blocks, Stopwatch(verdict="ok"))
    return compare_arms(ARMS, suites_in(ARMS), map(trial_of, rollouts), part, *asked, **how)


def of_metric(ab: ArmsCompared, metric: str) -> dict[str, MetricCompared]:
    return {each.new_arm: each for each in ab.comparisons if each.metric == metric}


def test_nodes_at_different_distances() -> None:
    """A comparison of arms warns if nodes differ in the time that connecting to the backend takes."""
    node = NodeRecord(1, "w1", "a", 4, 8, 0, "3.11", "now", connect_ms=0.2)
    nodes = [node, replace(node, name="w2", node="b", connect_ms=1.3), replace(node, name="w3", node="c")]

    assert () == compared({}, {}, nodes=[node, replace(nodes[1], connect_ms=1.2)]).warnings
    (warning,) = compared({}, {}, nodes=nodes).warnings
    assert "connecting takes 0.2 ms from w1 on a, 0.2 ms from w3 on c, 1.3 ms from w2 on b" in warning


def test_each_arm_is_compared_with_the_first() -> None:
    """Only the slower or worse arm is reported as such, and each comparison names its two arms."""
    ab = compared({"c": 2.0}, {"b": 0.3})
    ttft, tsq = of_metric(ab, "ttft.p50"), of_metric(ab, "tsq")

    assert [("a", "b"), ("a", "c")] == [(each.base_arm, each.new_arm) for each in ab.comparisons if each.metric == "tsq"]
    assert ("no difference shown", "slower") == (ttft["b"].finding, ttft["c"].finding)
    assert ("worse", "no difference shown") == (tsq["b"].finding, tsq["c"].finding)
    assert "t of 10 interleaved pairs" == ttft["b"].method == ttft["c"].method


def test_comparisons_of_one_metric_share_its_risk() -> None:
    """The clearest comparison decides with a risk of 0.05 / 2, the other with 0.05. If none decides, both have the wider interval."""
    same, one = of_metric(compared({}, {}), "ttft.p50"), of_metric(compared({"c": 2.0}, {}), "ttft.p50")

    assert [0.975, 0.975] == [each.confidence for each in same.values()]
    assert [0.95, 0.975] == [each.confidence for each in one.values()]


def test_all_arms_with_each_other() -> None:
    """With `with_each_other` every two arms are compared, with the earlier arm as the base. All three comparisons share one risk."""
    ttft = [each for each in compared({"c": 2.0}, {}, with_each_other=True).comparisons if each.metric == "ttft.p50"]

    assert [("a", "b"), ("a", "c"), ("b", "c")] == [(each.base_arm, each.new_arm) for each in ttft]
    assert ["no difference shown", "slower", "slower"] == [each.finding for each in ttft]
    assert [0.95, 1 - 0.05 / 3, 1 - 0.05 / 3] == [each.confidence for each in ttft]


def test_the_goodput_of_each_arm() -> None:
    """With objectives, each arm has a goodput per second of the time in which it ran. Without objectives, it has none."""
    ab = compared({"c": 2.0}, {}, slo={"ttft": 20.0})
    first, _, last = (arm.goodput for arm in ab.arms)

    assert first is not None and last is not None
    assert (60, 1.0) == (first.good_calls, first.attainment)
    assert last.good_calls < 10
    assert first.goodput_per_s == 60 / ab.arms[0].busy_s
    assert [None] * 3 == [arm.goodput for arm in compared({}, {}).arms]


@pytest.mark.parametrize(("dead", "alive"), [("b", "c"), ("c", "b")])
def test_a_lost_arm_does_not_affect_the_others(dead: str, alive: str) -> None:
    """A lost arm is inconclusive with the reason. The others are compared as if there were only two arms."""
    ab = compared({alive: 2.0}, {}, ArmFacts(failures={dead: f"arm {dead}: it is gone"}))
    ttft = of_metric(ab, "ttft.p50")

    assert ("slower", 0.95) == (ttft[alive].finding, ttft[alive].confidence)
    assert ("inconclusive", f"arm {dead}: it is gone") == (ttft[dead].finding, ttft[dead].reason)


def test_without_the_first_arm_nothing_is_compared() -> None:
    """If the first arm is lost, the others cannot be compared with it."""
    ab = compared({}, {}, ArmFacts(failures={"a": "arm a: it is gone"}))

    assert {"inconclusive"} == {each.finding for each in ab.comparisons}


def test_warnings_about_unequal_conditions_name_all_arms() -> None:
    """Warnings report differing hit ratios of all arms, the salted arms, and the order of arms that ran in sequence."""
    hits = {"a": 50, "b": 52, "c": 65}
    blocks = tuple(
        CacheBlock(arm, 1, salt="x" * (arm == "c"), prefix_cache=CacheHits(each / 100, each, 100.0)) for arm, each in hits.items()
    )

    apart, salted, sequence = compared({}, {}, ArmFacts(in_sequence=True), blocks).warnings

    assert "50 % of the prompt tokens were hits in a, 52 % in b, 65 % in c" in apart
    assert salted.startswith("a text that prevents cache hits was put before the prompts of c,")
    assert sequence.startswith("a ran before b before c, because they do not fit on this machine at once")
