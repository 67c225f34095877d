"""The pool's side of the connection to one node worker: its leases, its clock, and the labels that it has open at the stack."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from pytest_agentbench.lib import wire
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.nodes.clock import NodeClock
from pytest_agentbench.rollouts.nodes.protocol import Join, ToNode
from pytest_agentbench.rollouts.nodes.silence import Silence
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, LabelReleased, OpenLabel, RolloutTally
from pytest_agentbench.runs.nodes import NodeRecord, local_time

MOST_FAILURES = 3  # infra_errors in a row, after which a node worker is held


@dataclass
class AttemptLease:
    """The permission of a node worker to make one attempt of one rollout."""

    number: int
    key: RolloutKey
    given_at: float  # Unix time
    given_ns: int  # monotonic nanoseconds
    ended: asyncio.Future[Rollout]  # the record; or the exception of the attempt
    has_begun: bool = False  # whether setup and sandbox of the attempt were ready

    def lost(self, reason: str, node: str) -> Rollout:
        """Returns the record of an attempt of which no record comes, because the node worker `node` was lost."""
        times: dict[str, Any] = {"started_at": self.given_at, "started_ns": self.given_ns, "ended_ns": time.monotonic_ns()}
        return Rollout(*self.key, status="infra_error", reason=reason, node=node, **times)


@dataclass(eq=False)
class JoinedNode:
    """A node worker that has joined, from `Join` to the end of its connection. A node worker that joins again is another one."""

    name: str  # w1, w2, ...
    join: Join
    writer: asyncio.StreamWriter
    silence: Silence
    in_clear: bool  # whether others can read its connection
    clock: NodeClock = field(default_factory=NodeClock)
    leases: dict[int, AttemptLease] = field(default_factory=dict)
    has_joined: bool = False  # whether its processes serve
    pointed: int = 0  # number of the last `PointNode` that it has confirmed
    failures: int = 0  # infra_errors since the last attempt that was not one
    failing_since: int = 0  # end of the first of these failures, monotonic nanoseconds; 0 without one
    failure: str = ""  # reason of the last of these failures
    connect_ms: float | None = None  # time that connecting to the backend takes
    lag_ms: float | None = None  # the longest that a timer of its runner was late
    attempts: int = 0  # attempts whose record it sent
    lost: int = 0  # attempts that it had begun when it was lost
    dropped: int = 0  # results whose lease was not open
    joined_at: str = field(default_factory=local_time)
    tally: RolloutTally = field(default_factory=RolloutTally)
    _labels: dict[str, OpenLabel] = field(default_factory=dict)  # number of an address -> its label, which is not released
    _closing: dict[str, OpenLabel] = field(default_factory=dict)  # id of a label -> label whose rollout has ended

    @property
    def shown(self) -> str:
        """Name and machine, as in messages: `w3 on gpu-7`."""
        return f"{self.name} on {self.join.node}"

    @property
    def is_held(self) -> bool:
        """Whether it gets no attempts for now, because the last ones have failed (see Breaker)."""
        return self.failures >= MOST_FAILURES

    @property
    def slots(self) -> int:
        """The number of attempts that it may make at the same time."""
        return 0 if self.is_held else self.join.slots

    @property
    def free(self) -> int:
        """The number of attempts that it can make beside those that it makes."""
        return self.slots - len(self.leases)

    @property
    def unreleased(self) -> list[OpenLabel]:
        """Labels of its rollouts whose end the stack has not been told."""
        return [*self._labels.values(), *self._closing.values()]

    def record(self, session: int, why_left: str | None = None) -> NodeRecord:
        """Returns its facts for run.json. `why_left` is set if it has left before the session ended."""
        return NodeRecord(
            session=session,
            name=self.name,
            node=self.join.node,
            slots=self.join.slots,
            cores=self.join.cores,
            niceness=self.join.niceness,
            python=self.join.python,
            joined_at=self.joined_at,
            left_at=None if why_left is None else local_time(),
            why_left=why_left or "",
            attempts=self.attempts,
            lost=self.lost,
            dropped=self.dropped,
            clock_width_ms=round(self.clock.widest_ns / 1e6, 3) if self.attempts else None,
            connect_ms=self.connect_ms,
            lag_ms=self.lag_ms,
        )

    def send(self, message: ToNode, body: bytes = b"") -> None:
        self.writer.write(wire.pack(message, body))

    def give(self, number: int, key: RolloutKey) -> AttemptLease:
        """Returns a new lease, which the caller has to send."""
        self.leases[number] = lease = AttemptLease(
            number, key, time.time(), time.monotonic_ns(), asyncio.get_running_loop().create_future()
        )
        return lease

    def note_label(self, message: AddressOpened | AddressClosed | LabelReleased) -> None:
        """Notes which labels are open, so that the pool can release them if this node worker is lost."""
        self.tally = message.tally
        match message:
            case AddressOpened(number, label=OpenLabel() as label):
                self._labels[number] = label
            case AddressClosed(number, unreleased=unreleased):
                label_of = self._labels.pop(number, None)
                if label_of is not None and unreleased:
                    self._closing[label_of.id] = label_of
            case LabelReleased(id):
                self._closing.pop(id, None)
