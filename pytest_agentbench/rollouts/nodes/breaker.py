"""Finds node workers where every rollout fails while rollouts elsewhere do not, so that they do not fail the whole plan."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.nodes.joined_node import JoinedNode

CUTS = 2  # times that a node worker may be cut off; after the first, it may start its processes again and join


class Breaker:
    """Decides which node workers get no more attempts because these fail there alone.

    A node worker is held (`JoinedNode.is_held`), so that it gets no attempts, after some infra_errors in a row. If then a rollout that
    began elsewhere after the first of them succeeds, the fault is there, and the node worker is cut off. If all node workers are held, the
    fault is elsewhere, and all of them get attempts again (`release`).
    """

    def __init__(self) -> None:
        self._cuts: Counter[str] = Counter()  # instance of a node worker -> times that it was cut off

    def ended(self, node: JoinedNode, given_ns: int, rollout: Rollout, ready: Sequence[JoinedNode]) -> list[JoinedNode]:
        """Notes how an attempt ended whose lease was given at `given_ns`. Returns node workers to cut off. `ready` are all that work."""
        if rollout.status == "infra_error":
            node.failures += 1
            node.failing_since, node.failure = node.failing_since or time.monotonic_ns(), rollout.reason
            return []
        node.failures = node.failing_since = 0
        return [each for each in ready if each.is_held and given_ns > each.failing_since]

    def release(self, ready: Sequence[JoinedNode]) -> None:
        """Lets all node workers have attempts again if all of them are held."""
        if all(node.is_held for node in ready):
            for node in ready:
                node.failures = node.failing_since = 0

    def may_join_again(self, node: JoinedNode) -> bool:
        """Returns whether a node worker that is cut off now may join again."""
        self._cuts[node.join.instance] += 1
        return self._cuts[node.join.instance] < CUTS
