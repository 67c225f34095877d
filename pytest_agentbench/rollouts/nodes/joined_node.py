"""A node worker as the pool sees it: its leases, its clock, the labels that it has open at the stack, and deaths of its template processes.

Two machines have different monotonic clocks. Their difference, the offset, is not measured but bounded: a message is sent before it is
received. All stamps of a record are moved by the same number, so every difference within a record, and with it every latency, stays as
the node measured it.
"""

from __future__ import annotations

import asyncio
import functools
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.record_fields import is_array, is_union
from pytest_agentbench.metrics.stopwatch import CpuSample
from pytest_agentbench.records import Rollout, RolloutKey, Stamp
from pytest_agentbench.rollouts.nodes.connection import Silence
from pytest_agentbench.rollouts.nodes.protocol import Join, ToNode
from pytest_agentbench.rollouts.pool.controller_link import Link
from pytest_agentbench.rollouts.protocol import TemplateLost, TemplateVerdict
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, LabelReleased, OpenLabel, RolloutTally
from pytest_agentbench.runs.nodes import NodeRecord, local_time

Record = TypeVar("Record")
Move = Callable[[Any, int], Any]  # returns a value with its stamps moved by a number of nanoseconds

#: How much the offset of two clocks may change, as a share of the time. Clocks of machines drift by less than 50 millionths, as a rule.
DRIFT = 50e-6


@dataclass
class Bound:
    """The narrowest bound of the offset on one side. It becomes wider as it grows older, because clocks drift."""

    sign: int  # 1 for the lower bound, which is better if it is greater; -1 for the upper bound
    best: int | None = None  # narrowest bound when it was taken, nanoseconds; None before the first one
    at_ns: int = 0  # when it was taken, on the controller's clock
    latest: int = 0  # bound that was taken last, nanoseconds
    latest_ns: int = 0  # when that was taken, on the controller's clock

    def value(self, now_ns: int) -> int:
        """Returns the bound as it is now."""
        assert self.best is not None
        return self.best - self.sign * round(DRIFT * max(0, now_ns - self.at_ns))

    def add(self, bound: int, now_ns: int) -> None:
        """Takes a bound, which replaces a wider one."""
        if self.best is None or self.sign * bound >= self.sign * self.value(now_ns):
            self.best, self.at_ns = bound, now_ns
        self.latest, self.latest_ns = bound, now_ns

    def forget(self) -> None:
        """Forgets all bounds but the latest."""
        self.best, self.at_ns = self.latest, self.latest_ns


@dataclass
class NodeClock:
    """The offset of the clock of one node: the number that has to be added to its stamps to place them on the controller's clock.

    Each message gives a bound. If the bounds contradict each other, one of the clocks was stopped or moved, so only the latest count.
    The properties need both bounds (`known`).
    """

    widest_ns: int = 0  # greatest `width_ns` with which a record was placed
    _low: Bound = field(default_factory=lambda: Bound(1))
    _high: Bound = field(default_factory=lambda: Bound(-1))
    _now_ns: int = 0  # latest time on the controller's clock

    def before(self, pool_ns: int, node_ns: int) -> None:
        """Notes that something at `pool_ns` on the controller's clock happened before something at `node_ns` on the node's."""
        self._add(self._low, pool_ns - node_ns, pool_ns)

    def after(self, node_ns: int, pool_ns: int) -> None:
        """Notes that something at `node_ns` on the node's clock happened before something at `pool_ns` on the controller's."""
        self._add(self._high, pool_ns - node_ns, pool_ns)

    def _add(self, side: Bound, bound: int, pool_ns: int) -> None:
        self._now_ns = max(self._now_ns, pool_ns)
        side.add(bound, pool_ns)
        if self.known and self._ends()[0] > self._ends()[1]:
            self._low.forget()
            self._high.forget()

    def _ends(self) -> tuple[int, int]:
        return self._low.value(self._now_ns), self._high.value(self._now_ns)

    @property
    def known(self) -> bool:
        """Whether there is a bound on both sides."""
        return self._low.best is not None and self._high.best is not None

    @property
    def offset_ns(self) -> int:
        """The controller's clock minus the node's, nanoseconds: the middle of the bounds."""
        return sum(self._ends()) // 2

    @property
    def width_ns(self) -> int:
        """The distance of the bounds. A placed stamp is wrong by half of it at most."""
        low, high = self._ends()
        return abs(high - low)

    def place(self, rollout: Rollout) -> Rollout:
        """Returns a record of the node with all times on the clocks of this machine, and keeps the width of the bounds."""
        self.widest_ns = max(self.widest_ns, self.width_ns)
        moved = placed(rollout, self.offset_ns)
        if not moved.started_ns or not moved.started_at:
            return moved
        return replace(moved, started_at=(time.time_ns() - time.monotonic_ns() + moved.started_ns) / 1e9)

    def place_cpu(self, cpu: Mapping[str, Sequence[CpuSample]]) -> dict[str, tuple[CpuSample, ...]]:
        """Returns samples of the CPU use of the node's processes, moved to the controller's clock."""
        by_ns = self.offset_ns
        return {name: tuple((start + by_ns, end + by_ns, share) for start, end, share in samples) for name, samples in cpu.items()}


def placed(record: Record, by_ns: int) -> Record:
    """Returns a record with all stamps moved by the same number of nanoseconds. Lengths of time, and stamps that are 0 or None, stay."""
    move = mover(typing.cast("Any", type(record)))
    return typing.cast("Record", move(record, by_ns)) if move else record


@functools.cache
def mover(kind: Any) -> Move | None:
    """Returns the function that moves all stamps in a value of a type. None if such a value contains no stamps."""
    if kind == Stamp:
        return lambda stamp, by_ns: stamp and stamp + by_ns
    if is_array(kind) or is_dataclass(kind):
        return _record_mover(kind)
    inner = [move for each in typing.get_args(kind) if each is not Ellipsis and (move := mover(each))]
    if not inner:
        return None
    (move,) = inner
    if is_union(kind):
        return lambda value, by_ns: None if value is None else move(value, by_ns)
    if issubclass(typing.get_origin(kind), Mapping):
        return lambda values, by_ns: {name: move(value, by_ns) for name, value in values.items()}
    return lambda values, by_ns: tuple([move(value, by_ns) for value in values])


def _record_mover(kind: Any) -> Move | None:
    hints = typing.get_type_hints(kind, include_extras=True)
    moves = [(place, name, move) for place, (name, hint) in enumerate(hints.items()) if (move := mover(hint))]
    if not moves:
        return None
    if not is_array(kind):
        return lambda record, by_ns: replace(record, **{name: move(getattr(record, name), by_ns) for _, name, move in moves})

    def move_array(record: Any, by_ns: int) -> Any:
        values = [*record]
        for place, _, move in moves:
            values[place] = move(values[place], by_ns)
        return tuple.__new__(kind, values)

    return move_array


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
