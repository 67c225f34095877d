"""The table `calls`: a row for each LLM call of each attempt, those of judges included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean, median
from typing import Any, NamedTuple

from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.records import Attempt, LLMCall
from pytest_agentbench.tables.columns import Column
from pytest_agentbench.tables.places import PLACE, RolloutPlace


class CallRow(NamedTuple):
    """One call, and where it was made."""

    place: RolloutPlace
    attempt: Attempt
    number: int  # among those of its attempt that are measured, or among the others; counted from 1
    call: LLMCall

    def epoch_s(self, stamp: int | None) -> float | None:
        return self.place.origin.calendar.epoch_s(self.attempt.session, stamp)


def rows(place: RolloutPlace) -> Iterator[CallRow]:
    """The calls of a rollout, attempt by attempt."""
    for attempt in place.rollout.attempts:
        for calls in (attempt.calls, attempt.other_calls):
            for number, call in enumerate(calls, 1):
                yield CallRow(place, attempt, number, call)


def _metric(metric: Metric) -> Iterator[Column[CallRow]]:
    """The columns of a metric: one where a call has one value, three where its events have some."""
    if metric.of_events is not None:
        for name, statistic in (("mean", fmean), ("median", median), ("max", max)):
            about = f"{metric.title}, {name} of the call's own"
            yield Column(f"{metric.name}_{name}_ms", "number", about, _of_events(metric.of_events, statistic), "ms")
    elif metric.of_call is not None:
        yield Column(metric.key, "number", metric.title, _of_call(metric.of_call), "ms")


def _of_call(value: Callable[[LLMCall], float | None]) -> Callable[[CallRow], float | None]:
    def milliseconds(row: CallRow) -> float | None:
        duration = value(row.call)
        return None if duration is None else duration / 1e6

    return milliseconds


def _of_events(values: Callable[[LLMCall], list[int]], statistic: Callable[[list[int]], float]) -> Callable[[CallRow], float | None]:
    def milliseconds(row: CallRow) -> float | None:
        gaps = values(row.call)
        return statistic(gaps) / 1e6 if gaps else None

    return milliseconds


CALLS: tuple[Column[Any], ...] = (
    *PLACE,
    Column("session", "count", "which session of the run it was made in, counted from 1", lambda row: row.attempt.session),
    Column("attempt", "count", "which attempt at the rollout, counted from 1", lambda row: row.attempt.attempt),
    Column("role", "text", "who asked: nothing for the agent itself, `judge`, or a role of the suite's", lambda row: row.call.role),
    Column(
        "measured", "flag", "whether it is in the timings of a run, for it reached the backend under test", lambda row: row.call.measured
    ),
    Column("number", "count", "which of its attempt's calls that are measured, or of the others, counted from 1", lambda row: row.number),
    Column("received_s", "number", "when the tap had the request, since 1970", lambda row: row.epoch_s(row.call.received_ns), "s"),
    Column("sent_s", "number", "when its last byte was sent, since 1970", lambda row: row.epoch_s(row.call.sent_ns), "s"),
    Column(
        "ended_s", "number", "when the answer was complete, or the call failed, since 1970", lambda row: row.epoch_s(row.call.ended_ns), "s"
    ),
    Column("dialect", "text", "the API", lambda row: row.call.dialect),
    Column("streamed", "flag", "whether the agent asked for a stream", lambda row: row.call.streamed),
    Column("upgraded", "flag", "whether the tap made a stream of it", lambda row: row.call.upgraded),
    Column("model", "text", "that was asked for", lambda row: row.call.model),
    Column("answered_by", "text", "the model that the answer names", lambda row: row.call.answered_by),
    Column("http_status", "number", "of the backend", lambda row: row.call.http_status),
    Column("error_kind", "text", "how it failed; nothing where it went well", lambda row: row.call.error_kind),
    Column("finish_reason", "text", "as the server says", lambda row: row.call.finish_reason),
    Column("prompt_tokens", "number", "as the server counts", lambda row: row.call.prompt_tokens, "tokens"),
    Column("cached_tokens", "number", "prompt tokens from the prefix cache", lambda row: row.call.cached_tokens, "tokens"),
    Column(
        "output_tokens", "count", "as the server counts, else events with output", lambda row: timings.output_tokens(row.call), "tokens"
    ),
    Column("output_events", "count", "events with content, reasoning or a tool call", lambda row: len(row.call.output)),
    Column("token_source", "text", "where token counts are from", lambda row: row.call.token_source),
    *(column for metric in registry.METRICS for column in _metric(metric)),
    Column("call_output_tokens_per_s", "number", "output tokens per second of E2E", lambda row: timings.tokens_per_s(row.call), "tokens/s"),
    Column("held_ms", "number", "the wait for the backend's rate limit", lambda row: row.call.held_ns / 1e6, "ms"),
    Column("repeats", "count", "times that it went on another connection", lambda row: row.call.repeats),
)
