"""Which node workers are cut off because rollouts fail there alone."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.nodes.connection import Silence
from pytest_agentbench.rollouts.nodes.joined_node import JoinedNode
from pytest_agentbench.rollouts.nodes.node_choice import Breaker
from pytest_agentbench.rollouts.nodes.protocol import Join

OK, FAILED = Rollout("s", "a", "v", 1, "ok"), Rollout("s", "a", "v", 1, "infra_error", "dead")


def node(name: str, instance: str = "i") -> JoinedNode:
    join = Join(name, instance, 1, 4, 2, 0, "p", "3")
    return JoinedNode(name, join, cast("asyncio.StreamWriter", None), Silence(), in_clear=False)


def test_held_then_cut() -> None:
    """After three failures in a row a node worker is held. A success elsewhere cuts it off if it began after the first failure."""
    breaker, bad, good = Breaker(), node("bad"), node("good")
    before = time.monotonic_ns()
    for failures in (1, 2, 3):
        assert [] == breaker.ended(bad, before, FAILED, [bad, good])
        assert (failures == 3) == bad.is_held
    assert (0, 4) == (bad.slots, good.slots)

    assert [] == breaker.ended(good, before, OK, [bad, good])
    assert [] == breaker.ended(good, time.monotonic_ns(), FAILED, [bad, good])
    assert [bad] == breaker.ended(good, time.monotonic_ns(), OK, [bad, good])
    assert "dead" == bad.failure


def test_not_in_a_row() -> None:
    """A success in between begins the count anew."""
    breaker, one, other = Breaker(), node("one"), node("other")
    for rollout in (FAILED, FAILED, OK, FAILED, FAILED):
        breaker.ended(one, time.monotonic_ns(), rollout, [one, other])

    assert not one.is_held


def test_all_are_held() -> None:
    """If all node workers are held, none of them is the cause, and all get attempts again. One that is left over, too."""
    breaker, nodes = Breaker(), [node("one"), node("other")]
    for each in nodes:
        for _ in range(3):
            breaker.ended(each, time.monotonic_ns(), FAILED, nodes)
    breaker.release(nodes)
    assert [False, False] == [each.is_held for each in nodes]

    for _ in range(3):
        breaker.ended(nodes[0], time.monotonic_ns(), FAILED, nodes)
    breaker.release(nodes)
    assert nodes[0].is_held
    breaker.release(nodes[:1])
    assert not nodes[0].is_held


def test_again_once() -> None:
    """A node worker that was cut off may join again once. This concerns no other one of the same node."""
    breaker = Breaker()

    assert [True, False, True] == [breaker.may_join_again(node("n", instance)) for instance in ("a", "a", "b")]
