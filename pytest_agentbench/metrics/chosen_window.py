"""The measurement window that a user chooses, and what was measured in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import OPEN
from pytest_agentbench.stats.percentiles import LatencySpread

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice

Offsets = tuple[float, float | None]  # seconds after the first call, from and to; None: to the end


@dataclass(frozen=True)
class WindowSummary:
    """What was measured in [a window of your own](metrics.md#a-window-of-your-own)."""

    start_s: float  # as asked, seconds after the start of the first call; several sessions follow each other without the pauses
    end_s: float | None  # as asked; null: to the end
    seconds: float  # of the window that there were; 0: the run was over before
    run_s: float  # seconds from the first call to the end of the run
    calls: int  # LLM calls that were sent in it
    failed_calls: int  # of them
    # metrics of a session: of the calls that were sent in it, the tokens that came in it, the calls that ended in it, and of each rollout
    # the share that lies in it
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
    latencies: Mapping[str, LatencySpread | None]  # of the calls that were sent in it: `ttft_ms`, ...; null when there is no value


def window(part: Slice, offsets: Offsets) -> WindowSummary:
    """Returns what was measured in the window, which begins so many seconds after the first call."""
    spans, run_ns = placed(offsets, part)
    chosen = part.within({session: [span] for session, span in spans.items()})
    return WindowSummary(
        *offsets,
        seconds=chosen.seconds,
        run_s=run_ns / 1e9,
        calls=len(chosen.calls),
        failed_calls=len(chosen.calls) - len(chosen.successful_calls),
        metrics=registry.numbers(chosen, "session"),
        latencies=registry.spreads(chosen, "call", "event"),
    )


def placed(offsets: Offsets, part: Slice) -> tuple[dict[int, Span], int]:
    """(session -> what the window has of it, nanoseconds from the first call to the end), sessions one after the other, without pauses.

    A session begins with its first call and ends with its last call or rollout. One without calls is not there.
    """
    low, high = (None if each is None else round(each * 1e9) for each in offsets)
    spans: dict[int, Span] = {}
    before = 0
    for number, calls in sorted(part.call_spans.items()):
        if calls:
            first = min(start for start, _ in calls)
            last = max(end for _, end in (*calls, *part.attempt_spans[number]))
            start = max(first, first + (low or 0) - before)
            end = last if high is None else min(last, first + high - before)
            if start < end:
                spans[number] = start, end
            before += last - first
    return spans, before
