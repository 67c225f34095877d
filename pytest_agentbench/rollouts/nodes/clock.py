"""Moves records of node workers to the controller's clock.

Two machines have different monotonic clocks. Their difference, the offset, is not measured but bounded: a message is sent before it is
received. All stamps of a record are moved by the same number, so every difference within a record, and with it every latency, stays as
the node measured it.
"""

from __future__ import annotations

import functools
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

from pytest_agentbench.lib.record_fields import is_array, is_union
from pytest_agentbench.metrics.stopwatch import CpuSample
from pytest_agentbench.records import Rollout, Stamp

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
