"""What follows in the pool from the deaths of template processes on nodes (`isolation: process`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.nodes.joined_node import JoinedNode
from pytest_agentbench.rollouts.pool.controller_link import Link
from pytest_agentbench.rollouts.protocol import TemplateLost, TemplateVerdict


class NodeTemplates:
    """Has the controller decide about template processes that die on nodes, as it does about those of the pool.

    The controller counts the deaths of all nodes together, so the same rollouts run alone or end as in a session without nodes. Only
    rollouts on the node of the dead process are suspects. From the death until the process serves again or is given up, no attempt begins.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self, link: Link, on_change: Callable[[], None]) -> None:
        """`on_change` is called when `unavailable` has changed."""
        self._link, self._on_change = link, on_change
        self._dead: dict[tuple[str, str], tuple[RolloutKey, ...]] = {}  # node worker and process -> its rollouts at the death
        self._deciding: set[asyncio.Task[None]] = set()

    @property
    def unavailable(self) -> list[str]:
        """The names of template processes that are dead on a node."""
        return [name for _, name in self._dead]

    def died(self, node: JoinedNode, name: str, group: str) -> None:
        """Notes a death, and the rollouts of the group (suite and variant) that ran on the node."""
        in_flight = (lease.key for lease in node.leases.values() if lease.has_begun and lease.key.group == group)
        self._dead[node.name, name] = (*in_flight,)
        self._on_change()

    def decide(self, node: JoinedNode, lost: TemplateLost) -> None:
        """Asks the controller whether a process is started again, and sends the answer to the node worker."""
        question = TemplateLost(lost.name, lost.group, self._dead.get((node.name, lost.name), ()))
        task = asyncio.create_task(self._decide(node, question))
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)

    async def _decide(self, node: JoinedNode, question: TemplateLost) -> None:
        try:
            verdict, _ = await self._link.ask(question)
        except InfraError:
            verdict = TemplateVerdict(again=False)
        node.send(verdict)

    def serves(self, node: JoinedNode, name: str) -> None:
        """Notes that a process was started again or given up."""
        self._dead.pop((node.name, name), None)
        self._on_change()

    def forget(self, node: JoinedNode) -> None:
        """Forgets the processes of a node worker that was lost."""
        for place in [place for place in self._dead if place[0] == node.name]:
            del self._dead[place]
        self._on_change()
