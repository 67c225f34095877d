"""The slowest LLM calls, and why: which part of their time is furthest above the median of all calls, and what may have made it long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.metrics.slow_calls import SlowCall
from pytest_agentbench.profile.concurrency import USUAL, Levels, level_at
from pytest_agentbench.records import ERROR_KINDS

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Counts, Floats

MUCH = 1.5  # times the median

#: Parts of a call's time, in its order.
PARTS = ("client_queue", "rate_limit", "first_token", "decoding")


@dataclass(frozen=True)
class Explanation:
    """A slow call, and why it was."""

    call: SlowCall
    in_flight: int  # calls when it was sent, itself among them; 0 where nobody knows
    why: str


def explained(calls: FrameTable, slow: Sequence[tuple[int, SlowCall]]) -> tuple[Explanation, ...]:
    """Returns why the slowest calls were slow, each with its row in the table of all calls."""
    usual = _Usual(calls)
    return tuple(Explanation(call, int(usual.in_flight[place]), usual.why(place)) for place, call in slow)


class _Usual:
    """The calls as arrays of numbers, in milliseconds, and what is usual among them."""

    def __init__(self, calls: FrameTable) -> None:
        self.calls = calls
        first = np.where(np.isnan(calls["ttft_ms"]), calls["e2e_ms"], calls["ttft_ms"])
        self.parts = dict(zip(PARTS, (calls["client_queue_ms"], calls["held_ms"], first, calls["e2e_ms"] - first), strict=True))
        self.good = np.array([kind is None for kind in calls["error_kind"]], np.bool_)
        self.uncached = calls["prompt_tokens"] - calls["cached_tokens"]
        self.in_flight, self.usual_in_flight = _in_flight(calls)

    def why(self, place: int) -> str:
        row = {name: values[place] for name, values in self.calls.columns.items()}
        if row["error_kind"] is not None:
            return f"failed: {ERROR_KINDS.get(row['error_kind'], row['error_kind'])}"
        above = {part: values[place] - self._usual(values) for part, values in self.parts.items() if not np.isnan(values[place])}
        match max(above, key=lambda part: above[part], default=None):
            case "client_queue":
                return "it waited in the client before it was sent"
            case "rate_limit":
                return "the backend's rate limit held it back"
            case "first_token":
                return self._why_late(place, row)
            case "decoding":
                return self._why_long(place, row)
        return "nobody knows"

    def _why_late(self, place: int, row: dict[str, Any]) -> str:
        """Why the first token was late."""
        if np.isnan(row["ttft_ms"]):
            return "it did not stream, so nobody knows when its first token came"
        for values, what in ((self.uncached, "prompt tokens that were not in the cache"), (self.calls["prompt_tokens"], "prompt tokens")):
            if values[place] > MUCH * (usual := self._usual(values)):
                return f"its first token was late: {values[place]:,.0f} {what}, usually {usual:,.0f}"
        if self.in_flight[place] > self.usual_in_flight:
            return f"its first token was late: {self.in_flight[place]} calls were in flight, usually {self.usual_in_flight} or fewer"
        return "its first token was late, and neither its prompt nor the calls in flight say why"

    def _why_long(self, place: int, row: dict[str, Any]) -> str:
        """Why there was much time between the first token and the end."""
        tokens, gap, pace = row["output_tokens"], row["itl_max_ms"], self.calls["tpot_ms"]
        if gap > self.parts["decoding"][place] / 2 and row["output_events"] > 2:
            return f"it stalled: one gap of {gap:,.1f} ms"
        if tokens > MUCH * (usual := self._usual(self.calls["output_tokens"].astype(np.float64))):
            return f"a long answer: {tokens:,} tokens, usually {usual:,.0f}"
        if pace[place] > self._usual(pace):
            return f"slow tokens: {pace[place]:,.1f} ms each, usually {self._usual(pace):,.1f}"
        return "the end of its answer was late"

    def _usual(self, values: Floats) -> float:
        """The median over calls that went well; NaN where nobody knows one, and nothing is above it."""
        known = values[self.good & ~np.isnan(values)]
        return float(np.median(known)) if len(known) else float("nan")


def _in_flight(calls: FrameTable) -> tuple[Counts, int]:
    """How many were in flight when each call was sent, and how many usually are, or fewer."""
    was_sent = ~np.isnan(calls["sent_s"])  # as far as somebody knows
    counts = np.zeros(len(calls), np.int64)
    if not was_sent.any():
        return counts, 0
    levels = Levels.of(calls["sent_s"][was_sent], calls["ended_s"][was_sent])
    counts[was_sent] = levels.at(calls["sent_s"][was_sent])
    return counts, level_at({level: length for level, length in levels.duration().items() if level}, USUAL)
