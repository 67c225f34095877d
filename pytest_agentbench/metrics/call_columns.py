"""The table `calls`: a row for each LLM call of each attempt, those of judges included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.metrics.columns import NEVER, PLACE, FrameColumn, Hidden, RolloutPlace
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.metrics.timings import TIMESTAMP_METRICS, LateTimestamps
from pytest_agentbench.records import Attempt, LLMCall


@dataclass(frozen=True)
class CallRow:
    """One call, and where it was made."""

    place: RolloutPlace
    attempt: Attempt
    number: int  # among those of its attempt that are measured, or among the others; counted from 1
    call: LLMCall

    def epoch_s(self, stamp: int | None) -> float | None:
        return self.place.origin.calendar.epoch_s(self.attempt.session, stamp)

    @cached_property
    def values(self) -> dict[str, Sequence[float]]:
        """Metric of a call or of its events -> nanoseconds of the call; of an event's metric all its values."""
        return {name: metric.values_of(self.call) for name, metric in registry.latencies("event", "call").items()}

    @cached_property
    def late(self) -> LateTimestamps:
        """The stamps that this machine took late."""
        return LateTimestamps.of(self.call)


def rows(place: RolloutPlace) -> Iterator[CallRow]:
    """Yields the calls of a rollout, attempt by attempt."""
    for attempt in place.rollout.attempts:
        for calls in (attempt.calls, attempt.other_calls):
            for number, call in enumerate(calls, 1):
                yield CallRow(place, attempt, number, call)


def _metric(metric: Metric) -> Iterator[FrameColumn[CallRow]]:
    """Yields the columns of a metric: one if a call has one value, three if its events have values."""
    if metric.of_events is not None:
        for name, statistic in (("mean", fmean), ("median", median), ("max", max)):
            about = f"{metric.title}, {name} of the call's own"
            yield FrameColumn(f"{metric.name}_{name}_ms", "number", about, _milliseconds(metric.name, statistic), "ms")
    elif metric.of_call is not None:
        yield FrameColumn(metric.key, "number", metric.title, _milliseconds(metric.name, max), "ms")


def _milliseconds(metric: str, statistic: Callable[[Sequence[float]], float]) -> Callable[[CallRow], float | None]:
    return lambda row: statistic(values) / 1e6 if (values := row.values[metric]) else None


def _evened(metric: str) -> FrameColumn[CallRow]:
    """Returns the column of what a call with late stamps would have of a metric if those were spread evenly."""
    value = registry.objectives()[metric].of_call
    assert value is not None

    def milliseconds(row: CallRow) -> float | None:
        evened = value(row.late.evened) if row.late.places else None
        return None if evened is None else evened / 1e6

    return Hidden(f"evened_{metric}_ms", "number", "of a call with late stamps, if they were spread evenly", milliseconds)


def _since(start: int, end: int | None) -> float | None:
    """Returns milliseconds."""
    return None if end is None else (end - start) / 1e6


def _stamp(stamp: int | None) -> int:
    return NEVER if stamp is None else stamp


def columns() -> tuple[FrameColumn[Any], ...]:
    """Returns the columns of calls, with those of all metrics that are registered by now."""
    return *_BEFORE_METRICS, *(column for metric in registry.METRICS for column in _metric(metric)), *_AFTER_METRICS


_BEFORE_METRICS: tuple[FrameColumn[Any], ...] = (
    *PLACE,
    FrameColumn("session", "count", "which session of the run it was made in, counted from 1", lambda row: row.attempt.session),
    FrameColumn("attempt", "count", "which attempt at the rollout, counted from 1", lambda row: row.attempt.attempt),
    FrameColumn("role", "text", "who asked: nothing for the agent itself, `judge`, or a role of the suite's", lambda row: row.call.role),
    FrameColumn(
        "measured", "flag", "whether it is in the timings of a run, for it reached the backend under test", lambda row: row.call.measured
    ),
    FrameColumn(
        "number", "count", "which of its attempt's calls that are measured, or of the others, counted from 1", lambda row: row.number
    ),
    FrameColumn("received_s", "number", "when the tap had the request, since 1970", lambda row: row.epoch_s(row.call.received_ns), "s"),
    FrameColumn("sent_s", "number", "when its last byte was sent, since 1970", lambda row: row.epoch_s(row.call.sent_ns), "s"),
    FrameColumn(
        "ended_s", "number", "when the answer was complete, or the call failed, since 1970", lambda row: row.epoch_s(row.call.ended_ns), "s"
    ),
    FrameColumn("dialect", "text", "the API", lambda row: row.call.dialect),
    FrameColumn("streamed", "flag", "whether the agent asked for a stream", lambda row: row.call.streamed),
    FrameColumn("upgraded", "flag", "whether the tap made a stream of it", lambda row: row.call.upgraded),
    FrameColumn("model", "text", "that was asked for", lambda row: row.call.model),
    FrameColumn("answered_by", "text", "the model that the answer names", lambda row: row.call.answered_by),
    FrameColumn("http_status", "number", "of the backend", lambda row: row.call.http_status),
    FrameColumn("error_kind", "text", "how it failed; nothing where it went well", lambda row: row.call.error_kind),
    FrameColumn("finish_reason", "text", "as the server says", lambda row: row.call.finish_reason),
    FrameColumn("prompt_tokens", "number", "as the server counts", lambda row: row.call.prompt_tokens, "tokens"),
    FrameColumn("cached_tokens", "number", "prompt tokens from the prefix cache", lambda row: row.call.cached_tokens, "tokens"),
    FrameColumn(
        "output_tokens", "count", "as the server counts, else events with output", lambda row: timings.output_tokens(row.call), "tokens"
    ),
    FrameColumn("output_events", "count", "events with content, reasoning or a tool call", lambda row: len(row.call.output)),
    FrameColumn("token_source", "text", "where token counts are from", lambda row: row.call.token_source),
)

_AFTER_METRICS: tuple[FrameColumn[Any], ...] = (
    FrameColumn(
        "call_output_tokens_per_s", "number", "output tokens per second of E2E", lambda row: timings.tokens_per_s(row.call), "tokens/s"
    ),
    FrameColumn("held_ms", "number", "the wait for the backend's rate limit", lambda row: row.call.held_ns / 1e6, "ms"),
    FrameColumn("repeats", "count", "times that it went on another connection", lambda row: row.call.repeats),
    # columns that only metrics use
    Hidden("is_successful", "flag", "whether the call did not fail", lambda row: row.call.error_kind is None),
    Hidden("rollout", "count", "number of its rollout's row", lambda row: row.place.number),
    Hidden("is_last", "flag", "whether its attempt is the rollout's last", lambda row: row.attempt.attempt == row.place.rollout.attempt),
    Hidden("of", "count", "calls of its attempt that are measured", lambda row: len(row.attempt.calls)),
    Hidden("endpoint", "text", "base URL of another endpoint than the backend", lambda row: row.call.endpoint),
    Hidden("sent_ns", "count", "by the session's clock; NEVER if it was not", lambda row: _stamp(row.call.sent_ns)),
    Hidden("ended_ns", "count", "by the session's clock", lambda row: row.call.ended_ns),
    Hidden(
        "tap_ms",
        "number",
        "milliseconds from the receipt at the tap to the end",
        lambda row: _since(row.call.received_ns, row.call.ended_ns),
    ),
    Hidden(
        "whole_ms",
        "number",
        "from the agent's call (or the tap's receipt) to the end",
        lambda row: _since(row.call.begun_ns, row.call.ended_ns),
    ),
    Hidden(
        "until_sent_ms",
        "number",
        "from the agent's call (or the tap's receipt) to the send",
        lambda row: _since(row.call.begun_ns, row.call.sent_ns),
    ),
    Hidden("stamp", "text", "where stamps were taken", lambda row: row.call.stamp),
    Hidden("timed_events", "count", "output events of a call that went well", lambda row: row.late.events),
    Hidden("clean_events", "count", "output events of a call that went well, with stamps of their own", lambda row: row.late.clean),
    Hidden(
        "late_events",
        "count",
        "output events of a call that went well, read late",
        lambda row: len(row.late.places),
    ),
    Hidden("is_first_late", "flag", "whether the first output event was read late", lambda row: 0 in row.late.places),
    *map(_evened, TIMESTAMP_METRICS),
)
