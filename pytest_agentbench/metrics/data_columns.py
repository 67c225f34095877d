"""The columns of the tables of a run: calls, rollouts, scores, drafts, attempts and programs.

The table `calls` has a row for each LLM call of each attempt, including those of judges. The table `rollouts` has a row for each rollout,
and `scores` one for each score and each part of a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any, NamedTuple

from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.metrics.columns import NEVER, PLACE, FrameColumn, Hidden, RolloutPlace
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.metrics.timeline import PARTS, split
from pytest_agentbench.metrics.timings import TIMESTAMP_METRICS, LateTimestamps, delayed_ack_ns
from pytest_agentbench.records import UNDECLARED, Attempt, LLMCall, Program, Rollout, Scale


@dataclass(frozen=True)
class CallRow:
    """The source of a row of the table `calls`: an LLM call, its attempt and its rollout. Columns compute their values from it."""

    place: RolloutPlace
    attempt: Attempt
    number: int  # number among the measured calls of its attempt, or among the others; counted from 1
    call: LLMCall

    def epoch_s(self, stamp: int | None) -> float | None:
        return self.place.origin.calendar.epoch_s(self.attempt.session, stamp)

    @cached_property
    def values(self) -> dict[str, Sequence[float]]:
        """Name of a metric of calls or events -> its values for this call in nanoseconds. A metric of calls has at most one value."""
        return {name: metric.values_of(self.call) for name, metric in registry.latencies("event", "call").items()}

    @cached_property
    def late(self) -> LateTimestamps:
        """Tells which output chunks of the call have a timestamp that is too late, because this machine read them too late."""
        return LateTimestamps.of(self.call)


def call_rows(place: RolloutPlace) -> Iterator[CallRow]:
    """Yields the data of a row of the table `calls` for each call of a rollout, by attempt. `place` has the rollout and its run."""
    for attempt in place.rollout.attempts:
        for calls in (attempt.calls, attempt.other_calls):
            for number, call in enumerate(calls, 1):
                yield CallRow(place, attempt, number, call)


def _call_metric(metric: Metric) -> Iterator[FrameColumn[CallRow]]:
    """Yields the columns of the table `calls` that contain a metric.

    If it has a value for each call, like TTFT, that is one column. If it has a value for each output event, like ITL, there are three:
    mean, median and maximum.
    """
    if metric.of_events is not None:
        for name, statistic in (("mean", fmean), ("median", median), ("max", max)):
            about = f"{metric.title}, {name} of the values of the call"
            yield FrameColumn(f"{metric.name}_{name}_ms", "number", about, _milliseconds(metric.name, statistic), "ms")
    elif metric.of_call is not None:
        yield FrameColumn(metric.key, "number", metric.title, _milliseconds(metric.name, max), "ms")


def _milliseconds(metric: str, statistic: Callable[[Sequence[float]], float]) -> Callable[[CallRow], float | None]:
    return lambda row: statistic(values) / 1e6 if (values := row.values[metric]) else None


def _evened(metric: str) -> FrameColumn[CallRow]:
    """Returns a column with the values that a metric would have if chunks that were read late had arrived at even distances.

    Calls without such chunks have no value in it.
    """
    value = registry.objectives()[metric].of_call
    assert value is not None

    def milliseconds(row: CallRow) -> float | None:
        evened = value(row.late.evened) if row.late.places else None
        return None if evened is None else evened / 1e6

    return Hidden(f"evened_{metric}_ms", "number", "value if late timestamps were spread evenly; empty for other calls", milliseconds)


def _since(start: int, end: int | None) -> float | None:
    """Converts the time between two timestamps in nanoseconds to milliseconds. Returns None if the second one is unknown."""
    return None if end is None else (end - start) / 1e6


def _stamp(stamp: int | None) -> int:
    return NEVER if stamp is None else stamp


def call_columns() -> tuple[FrameColumn[Any], ...]:
    """Returns the columns of calls, including those of all metrics that are registered at the time of the call."""
    return *_CALL_FACTS, *(column for metric in registry.METRICS for column in _call_metric(metric)), *_CALL_DETAILS


_CALL_FACTS: tuple[FrameColumn[Any], ...] = (
    *PLACE,
    FrameColumn("session", "count", "number of the session, counted from 1", lambda row: row.attempt.session),
    FrameColumn(
        "node", "text", "node worker that made the attempt; empty for the machine of the session", lambda row: row.attempt.node or None
    ),
    FrameColumn("attempt", "count", "number of the attempt at the rollout, counted from 1", lambda row: row.attempt.attempt),
    FrameColumn(
        "role", "text", "role that made the call: empty for the agent itself, `judge`, or a role of the suite", lambda row: row.call.role
    ),
    FrameColumn(
        "measured",
        "flag",
        "whether the timings of a run include it: it went to the backend under test, and not from a judge",
        lambda row: row.call.measured,
    ),
    FrameColumn(
        "number", "count", "number among the measured calls of its attempt, or among the others, counted from 1", lambda row: row.number
    ),
    FrameColumn(
        "received_s", "number", "when the tap had received the request, since 1970", lambda row: row.epoch_s(row.call.received_ns), "s"
    ),
    FrameColumn(
        "sent_s", "number", "when the last byte of the request was sent, since 1970", lambda row: row.epoch_s(row.call.sent_ns), "s"
    ),
    FrameColumn(
        "ended_s", "number", "when the answer was complete, or the call failed, since 1970", lambda row: row.epoch_s(row.call.ended_ns), "s"
    ),
    FrameColumn("dialect", "text", "API: chat, completions, responses or messages", lambda row: row.call.dialect),
    FrameColumn("streamed", "flag", "whether the agent requested a stream", lambda row: row.call.streamed),
    FrameColumn("upgraded", "flag", "whether the tap requested a stream although the agent did not", lambda row: row.call.upgraded),
    FrameColumn("model", "text", "model name in the request", lambda row: row.call.model),
    FrameColumn("answered_by", "text", "model name in the answer", lambda row: row.call.answered_by),
    FrameColumn("engine", "text", "name of the engine that answered, if the answer names it", lambda row: row.call.engine),
    FrameColumn("http_status", "number", "HTTP status of the backend", lambda row: row.call.http_status),
    FrameColumn("error_kind", "text", "kind of failure; empty if the call succeeded", lambda row: row.call.error_kind),
    FrameColumn("finish_reason", "text", "finish reason in the answer", lambda row: row.call.finish_reason),
    FrameColumn("prompt_tokens", "number", "prompt tokens reported by the server", lambda row: row.call.prompt_tokens, "tokens"),
    FrameColumn("cached_tokens", "number", "prompt tokens from the prefix cache", lambda row: row.call.cached_tokens, "tokens"),
    FrameColumn(
        "output_tokens",
        "count",
        "completion tokens reported by the server, or else the number of output events",
        lambda row: timings.output_tokens(row.call),
        "tokens",
    ),
    FrameColumn("output_events", "count", "events with content, reasoning or a tool call", lambda row: len(row.call.output)),
    FrameColumn("token_source", "text", "source of the token counts: usage, continuous, chunks or none", lambda row: row.call.token_source),
)

_CALL_DETAILS: tuple[FrameColumn[Any], ...] = (
    FrameColumn(
        "call_output_tokens_per_s", "number", "output tokens per second of E2E", lambda row: timings.tokens_per_s(row.call), "tokens/s"
    ),
    FrameColumn("held_ms", "number", "time that a rate limit delayed the request", lambda row: row.call.held_ns / 1e6, "ms"),
    FrameColumn(
        "repeats", "count", "idle connections that the backend had closed when the request was to be sent", lambda row: row.call.repeats
    ),
    # Columns that only metrics use.
    Hidden("is_successful", "flag", "whether the call did not fail", lambda row: row.call.error_kind is None),
    Hidden("rollout", "count", "index of the rollout's row", lambda row: row.place.number),
    Hidden(
        "is_last",
        "flag",
        "whether its attempt is the last one of the rollout",
        lambda row: row.attempt.attempt == row.place.rollout.attempt,
    ),
    Hidden("of", "count", "number of measured calls of its attempt", lambda row: len(row.attempt.calls)),
    Hidden("endpoint", "text", "base URL of the endpoint; empty for the backend under test", lambda row: row.call.endpoint),
    Hidden("sent_ns", "count", "when the request was sent, session clock; NEVER if it was not", lambda row: _stamp(row.call.sent_ns)),
    Hidden("ended_ns", "count", "when the call ended, session clock", lambda row: row.call.ended_ns),
    Hidden(
        "tap_ms",
        "number",
        "from the receipt at the tap to the end",
        lambda row: _since(row.call.received_ns, row.call.ended_ns),
    ),
    Hidden(
        "whole_ms",
        "number",
        "from the agent's call (or the receipt at the tap) to the end",
        lambda row: _since(row.call.begun_ns, row.call.ended_ns),
    ),
    Hidden(
        "until_sent_ms",
        "number",
        "from the agent's call (or the receipt at the tap) to the sending",
        lambda row: _since(row.call.begun_ns, row.call.sent_ns),
    ),
    Hidden("stamp", "text", "source of the timestamps: user or kernel", lambda row: row.call.stamp),
    Hidden("timed_events", "count", "output events of a successful call", lambda row: row.late.events),
    Hidden("clean_events", "count", "output events of a successful call that have their own timestamp", lambda row: row.late.clean),
    Hidden(
        "late_events",
        "count",
        "output events of a successful call that were read late",
        lambda row: len(row.late.places),
    ),
    Hidden("is_first_late", "flag", "whether the first output event was read late", lambda row: 0 in row.late.places),
    Hidden(
        "is_first_ack_bound",
        "flag",
        "whether the first event could reach a client that delays acknowledgements later than the tap",
        lambda row: row.late.events > 0 and delayed_ack_ns(row.call) > 0,
    ),
    *map(_evened, TIMESTAMP_METRICS),
)


@dataclass(frozen=True)
class RolloutRow:
    """The source of a row of the table `rollouts`. Columns compute their values from it."""

    place: RolloutPlace

    @property
    def rollout(self) -> Rollout:
        return self.place.rollout

    def epoch_s(self, stamp: int) -> float | None:
        return self.place.origin.calendar.epoch_s(self.rollout.session, stamp)

    @cached_property
    def parts(self) -> dict[str, float]:
        """Activity of the rollout, such as `decoding` -> its milliseconds. Empty if the times of the rollout are unknown."""
        return {part: duration / 1e6 for part, duration in split(self.rollout).items()} if self.rollout.ended_ns else {}


class SpanRow(NamedTuple):
    """The source of a row in the table of attempts, or in that of programs: an attempt, or a program that a command agent ran."""

    number: int  # index of the rollout's row
    span: Attempt | Program


class DraftRow(NamedTuple):
    """A row of the table of drafts: a score that both the first and the chosen draft (try of an agent that judges itself) have."""

    number: int  # index of the rollout's row
    score: str  # name of the score
    first: float  # value of the first draft
    chosen: float  # value of the chosen draft


class ScoreRow(NamedTuple):
    """A row of the table `scores`: a score of a rollout, a part of a score, or the reason why a score is missing."""

    place: RolloutPlace
    score: str
    part: str | None = None
    value: float | None = None
    error: str | None = None
    explanation: str | None = None

    @property
    def scale(self) -> Scale:
        """The scale of the score. UNDECLARED if the row is a part of a score."""
        return UNDECLARED if self.part else self.place.origin.scale(self.place.rollout.key.group, self.score)


def draft_rows(place: RolloutPlace) -> Iterator[DraftRow]:
    """Yields the scores that both the first and the chosen draft of the rollout in `place` have (see `DraftRow`)."""
    drafts = place.rollout.drafts
    chosen = next((draft.scores for draft in drafts if draft.chosen), {})
    for name, score in drafts[0].scores.items() if drafts else ():
        if name in chosen:
            yield DraftRow(place.number, name, float(score), float(chosen[name]))


def score_rows(place: RolloutPlace) -> Iterator[ScoreRow]:
    """Yields the scores of the rollout in `place`, each followed by its parts, then the missing scores."""
    for name, score in place.rollout.scores.items():
        yield ScoreRow(place, name, None, float(score), None, score.explanation or None)
        for part, value in score.parts.items():
            yield ScoreRow(place, name, part, value)
    for name, error in place.rollout.score_errors.items():
        yield ScoreRow(place, name, error=error)


def _good(rollout: Rollout) -> list[LLMCall]:
    return [call for call in rollout.calls if call.error_kind is None]


def _total(tokens: Callable[[LLMCall], int | None]) -> Callable[[RolloutRow], int | None]:
    """Returns a function of a row: the tokens of the last attempt's successful calls together, or None if no call has a count."""

    def total(row: RolloutRow) -> int | None:
        counts = [count for call in _good(row.rollout) if (count := tokens(call)) is not None]
        return sum(counts) if counts else None

    return total


def _rollout_metric(value: Callable[[Rollout], float]) -> Callable[[RolloutRow], float | None]:
    return lambda row: value(row.rollout) / 1e6 if row.rollout.ended_ns else None


def _part(part: str) -> FrameColumn[RolloutRow]:
    """Returns the column with the time that an activity of a rollout, such as `decoding`, took."""
    about = f"time of the activity `{part}`; empty if the times of the rollout are unknown"
    return Hidden(f"{part}_part_ms", "number", about, lambda row: row.parts.get(part))


def _better(row: ScoreRow) -> str | None:
    return row.scale.better if row.scale.declared else None


def rollout_columns() -> tuple[FrameColumn[Any], ...]:
    """Returns the columns of rollouts, including those of all metrics that are registered at the time of the call."""
    functions = {metric: metric.of_rollout for metric in registry.METRICS if metric.of_rollout is not None}
    metrics = (
        FrameColumn(metric.key, "number", metric.definition, _rollout_metric(function), "ms") for metric, function in functions.items()
    )
    return *_ROLLOUT_FACTS, *metrics, *_ROLLOUT_DETAILS


_ROLLOUT_FACTS: tuple[FrameColumn[Any], ...] = (
    *PLACE,
    FrameColumn("session", "count", "number of the session, counted from 1", lambda row: row.rollout.session),
    FrameColumn(
        "node", "text", "node worker that made the last attempt; empty for the machine of the session", lambda row: row.rollout.node or None
    ),
    FrameColumn("cluster", "text", "cluster of the scenario", lambda row: row.rollout.cluster),
    FrameColumn("status", "text", "status of the rollout", lambda row: row.rollout.status),
    FrameColumn("reason", "text", "reason for a status other than `ok`", lambda row: row.rollout.reason or None),
    FrameColumn("attempts", "count", "number of attempts, the last one included", lambda row: len(row.rollout.attempts)),
    FrameColumn("started_s", "number", "start of the last attempt, since 1970", lambda row: row.epoch_s(row.rollout.started_ns), "s"),
    FrameColumn("ended_s", "number", "end of the last attempt, since 1970", lambda row: row.epoch_s(row.rollout.ended_ns), "s"),
)

_ROLLOUT_DETAILS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("turns", "count", "LLM calls of the agent itself, without those of roles", lambda row: row.rollout.turns),
    FrameColumn("calls", "count", "LLM calls of the last attempt, failed ones included", lambda row: len(row.rollout.calls)),
    FrameColumn(
        "failed_calls", "count", "failed LLM calls of the last attempt", lambda row: len(row.rollout.calls) - len(_good(row.rollout))
    ),
    FrameColumn("tool_calls", "count", "number of tool calls", lambda row: len(row.rollout.tool_calls)),
    FrameColumn("tools", "text", "names of the called tools, in order, separated by spaces", lambda row: " ".join(row.rollout.tools)),
    FrameColumn("expected_tools", "text", "names of the tools that the labels expect", lambda row: " ".join(row.rollout.expected_tools)),
    FrameColumn("prompt_tokens", "number", "prompt tokens of successful calls", _total(lambda call: call.prompt_tokens), "tokens"),
    FrameColumn("cached_tokens", "number", "prompt tokens from the prefix cache", _total(lambda call: call.cached_tokens), "tokens"),
    FrameColumn("output_tokens", "number", "output tokens of successful calls", _total(timings.output_tokens), "tokens"),
    # Columns that only metrics use.
    Hidden("group", "text", "the suite, or `suite-variant`", lambda row: row.rollout.key.group),
    Hidden("is_evaluable", "flag", "whether it ended as `ok` or `limit`", lambda row: row.rollout.evaluable),
    Hidden("started_ns", "count", "start by the session clock; 0 if unknown", lambda row: row.rollout.started_ns),
    Hidden("ended_ns", "count", "end by the session clock; 0 if unknown", lambda row: row.rollout.ended_ns),
    Hidden("drafts", "count", "number of drafts of an agent that judges its own work", lambda row: len(row.rollout.drafts)),
    Hidden("is_accepted", "flag", "whether one of the drafts was accepted", lambda row: any(each.accepted for each in row.rollout.drafts)),
    *map(_part, PARTS),
)

#: Columns of the table of attempts.
ATTEMPTS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("rollout", "count", "index of the rollout's row", lambda row: row.number),
    FrameColumn("session", "count", "number of the session", lambda row: row.span.session),
    FrameColumn("started_ns", "count", "start by the session clock", lambda row: row.span.started_ns),
    FrameColumn("ended_ns", "count", "end by the session clock", lambda row: row.span.ended_ns),
)

#: Columns of the table of programs of command agents.
PROGRAMS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("rollout", "count", "index of the rollout's row", lambda row: row.number),
    FrameColumn("started_ns", "count", "start by the session clock", lambda row: row.span.started_ns),
    FrameColumn("ended_ns", "count", "end by the session clock", lambda row: row.span.ended_ns),
    FrameColumn("cpu_s", "number", "CPU time of all its processes", lambda row: row.span.cpu_s, "s"),
)

#: Columns of the table of drafts.
DRAFTS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("rollout", "count", "index of the rollout's row", lambda row: row.number),
    FrameColumn("score", "text", "name of the score", lambda row: row.score),
    FrameColumn("first", "number", "score of the first draft", lambda row: row.first),
    FrameColumn("chosen", "number", "score of the chosen draft", lambda row: row.chosen),
)

SCORES: tuple[FrameColumn[Any], ...] = (
    *PLACE,
    FrameColumn("score", "text", "name of the score", lambda row: row.score),
    FrameColumn("part", "text", "name of a part of the score; empty for the score itself", lambda row: row.part),
    FrameColumn("value", "number", "value of the score or of the part", lambda row: row.value),
    FrameColumn(
        "better", "text", "which values are better: `higher` or `lower`; empty if the scorer does not declare it, and for a part", _better
    ),
    FrameColumn("score_unit", "text", "unit of the score; empty if its scorer declares none", lambda row: row.scale.unit or None),
    FrameColumn("error", "text", "why the score is missing", lambda row: row.error),
    FrameColumn("explanation", "text", "explanation of the scorer", lambda row: row.explanation),
)
