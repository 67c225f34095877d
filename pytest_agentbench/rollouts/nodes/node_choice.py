"""Decides which node worker makes an attempt, which ones get none because all fail there, and when an attempt is not made again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.nodes.joined_node import AttemptLease, JoinedNode
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted
from pytest_agentbench.rollouts.protocol import BlockSettings

MOST_LOSSES = 3  # node workers that may be lost while the same rollout runs, after which it ends as infra_error
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


class NodeChoice:
    """Chooses the node worker for each attempt.

    A scenario and trial runs on the same node in all arms of an A/B session, as long as a node worker of that node is there.
    """

    def __init__(self, blocks: BlockSettings | None) -> None:
        self._has_blocks = blocks is not None
        self._origins: Mapping[str, str] = {} if blocks is None else {name: o.variant for name, o in blocks.origins.items()}
        self._places: dict[tuple[str, str, int], str] = {}  # suite, scenario and trial -> node where it runs

    def choose(self, key: RolloutKey, ready: Sequence[JoinedNode]) -> JoinedNode | None:
        """Returns the node worker for an attempt: of the node where the scenario and trial ran before, or the least busy one."""
        place = self._places.get(self._place_of(key))
        at_place = [node for node in ready if node.join.node == place] if self._has_blocks else []
        free = [node for node in at_place or ready if node.free > 0]
        return max(free, key=lambda node: (node.free / node.join.slots, node.free), default=None)

    def note(self, key: RolloutKey, node: JoinedNode) -> None:
        """Notes that an attempt runs on the node of a node worker."""
        self._places[self._place_of(key)] = node.join.node

    def _place_of(self, key: RolloutKey) -> tuple[str, str, int]:
        return f"{key.suite}-{self._origins.get(key.variant, key.variant)}", key.scenario, key.trial


class NodeLosses:
    """Counts how many node workers were lost while a rollout ran. After MOST_LOSSES the rollout ends as infra_error."""

    def __init__(self) -> None:
        self._losses: Counter[RolloutKey] = Counter()

    def give_back(self, lease: AttemptLease, rollout: Rollout) -> None:
        """Has the scheduler repeat an interrupted attempt. Counts it, and ends the rollout if that has happened too often."""
        self._losses[lease.key] += 1
        if self.is_over(lease.key):
            lease.ended.set_result(replace(rollout, reason=f"{self.why_ended(lease.key)}; the last one: {rollout.reason}"))
        else:
            lease.ended.set_exception(Interrupted(rollout))

    def is_over(self, key: RolloutKey) -> bool:
        """Returns whether no further attempt of a rollout is made."""
        return self._losses[key] >= MOST_LOSSES

    def why_ended(self, key: RolloutKey) -> str:
        return f"{self._losses[key]} node workers were lost while this rollout ran; run it alone with -k"


def never_ran(key: RolloutKey, why: str) -> Rollout:
    """Returns the record of a rollout that ends without an attempt."""
    now = time.monotonic_ns()
    return Rollout(*key, status="infra_error", reason=why, started_at=time.time(), started_ns=now, ended_ns=now)
