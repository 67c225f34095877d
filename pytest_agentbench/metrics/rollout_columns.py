"""The tables `rollouts` and `scores`: a row for each rollout, and one for each of its scores and their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.metrics.columns import PLACE, FrameColumn, Hidden, RolloutPlace
from pytest_agentbench.metrics.timeline import PARTS, split
from pytest_agentbench.records import UNDECLARED, Attempt, LLMCall, Program, Rollout, Scale


@dataclass(frozen=True)
class RolloutRow:
    """One rollout."""

    place: RolloutPlace

    @property
    def rollout(self) -> Rollout:
        return self.place.rollout

    def epoch_s(self, stamp: int) -> float | None:
        return self.place.origin.calendar.epoch_s(self.rollout.session, stamp)

    @cached_property
    def parts(self) -> dict[str, float]:
        """Part of the rollout -> milliseconds that it had; empty if the rollout has no times."""
        return {part: duration / 1e6 for part, duration in split(self.rollout).items()} if self.rollout.ended_ns else {}


class SpanRow(NamedTuple):
    """An attempt at a rollout, or a program of it."""

    number: int  # of the rollout's row
    span: Attempt | Program


class DraftRow(NamedTuple):
    """A score that the first and the chosen draft of a rollout have."""

    number: int  # of the rollout's row
    score: str
    first: float
    chosen: float


class ScoreRow(NamedTuple):
    """One score of a rollout, one of its parts, or why it is missing."""

    place: RolloutPlace
    score: str
    part: str | None = None
    value: float | None = None
    error: str | None = None
    explanation: str | None = None

    @property
    def scale(self) -> Scale:
        """Of the score; that of a part is unknown."""
        return UNDECLARED if self.part else self.place.origin.scale(self.place.rollout.key.group, self.score)


def draft_rows(place: RolloutPlace) -> Iterator[DraftRow]:
    """Yields the scores of a rollout whose agent judges its own work."""
    drafts = place.rollout.drafts
    chosen = next((draft.scores for draft in drafts if draft.chosen), {})
    for name, score in drafts[0].scores.items() if drafts else ():
        if name in chosen:
            yield DraftRow(place.number, name, float(score), float(chosen[name]))


def score_rows(place: RolloutPlace) -> Iterator[ScoreRow]:
    """The scores of a rollout, each before its parts; then those that are missing."""
    for name, score in place.rollout.scores.items():
        yield ScoreRow(place, name, None, float(score), None, score.explanation or None)
        for part, value in score.parts.items():
            yield ScoreRow(place, name, part, value)
    for name, error in place.rollout.score_errors.items():
        yield ScoreRow(place, name, error=error)


def _good(rollout: Rollout) -> list[LLMCall]:
    return [call for call in rollout.calls if call.error_kind is None]


def _total(tokens: Callable[[LLMCall], int | None]) -> Callable[[RolloutRow], int | None]:
    """The sum over the good calls of the last attempt; None where no call has a value."""

    def total(row: RolloutRow) -> int | None:
        counts = [count for call in _good(row.rollout) if (count := tokens(call)) is not None]
        return sum(counts) if counts else None

    return total


def _metric(value: Callable[[Rollout], float]) -> Callable[[RolloutRow], float | None]:
    return lambda row: value(row.rollout) / 1e6 if row.rollout.ended_ns else None


def _part(part: str) -> FrameColumn[RolloutRow]:
    """Returns the column of the time that a part of a rollout had, see `windows.split`."""
    about = f"the time that `{part}` had, of a rollout whose time is known"
    return Hidden(f"{part}_part_ms", "number", about, lambda row: row.parts.get(part))


def _better(row: ScoreRow) -> str | None:
    return row.scale.better if row.scale.declared else None


def columns() -> tuple[FrameColumn[Any], ...]:
    """Returns the columns of rollouts, with those of all metrics that are registered by now."""
    functions = {metric: metric.of_rollout for metric in registry.METRICS if metric.of_rollout is not None}
    metrics = (FrameColumn(metric.key, "number", metric.definition, _metric(function), "ms") for metric, function in functions.items())
    return *_BEFORE_METRICS, *metrics, *_AFTER_METRICS


_BEFORE_METRICS: tuple[FrameColumn[Any], ...] = (
    *PLACE,
    FrameColumn("session", "count", "which session of the run it ran in, counted from 1", lambda row: row.rollout.session),
    FrameColumn("cluster", "text", "of its scenario", lambda row: row.rollout.cluster),
    FrameColumn("status", "text", "how it ended", lambda row: row.rollout.status),
    FrameColumn("reason", "text", "why it is not `ok`", lambda row: row.rollout.reason or None),
    FrameColumn("attempts", "count", "how many there were, this one included", lambda row: len(row.rollout.attempts)),
    FrameColumn("started_s", "number", "start of the last attempt, since 1970", lambda row: row.epoch_s(row.rollout.started_ns), "s"),
    FrameColumn("ended_s", "number", "end of it, since 1970", lambda row: row.epoch_s(row.rollout.ended_ns), "s"),
)

_AFTER_METRICS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("turns", "count", "LLM calls that the agent made", lambda row: row.rollout.turns),
    FrameColumn("calls", "count", "LLM calls of the last attempt, failed ones included", lambda row: len(row.rollout.calls)),
    FrameColumn("failed_calls", "count", "of them, those that failed", lambda row: len(row.rollout.calls) - len(_good(row.rollout))),
    FrameColumn("tool_calls", "count", "tool calls", lambda row: len(row.rollout.tool_calls)),
    FrameColumn("tools", "text", "names of the tools called, in order, with spaces between them", lambda row: " ".join(row.rollout.tools)),
    FrameColumn("expected_tools", "text", "those that the labels expect", lambda row: " ".join(row.rollout.expected_tools)),
    FrameColumn("prompt_tokens", "number", "of good calls", _total(lambda call: call.prompt_tokens), "tokens"),
    FrameColumn("cached_tokens", "number", "prompt tokens from the prefix cache", _total(lambda call: call.cached_tokens), "tokens"),
    FrameColumn("output_tokens", "number", "of good calls", _total(timings.output_tokens), "tokens"),
    # columns that only metrics use
    Hidden("group", "text", "the suite, or `suite-variant`", lambda row: row.rollout.key.group),
    Hidden("is_evaluable", "flag", "whether it ended as `ok` or `limit`", lambda row: row.rollout.evaluable),
    Hidden("started_ns", "count", "by the session's clock; 0 if the time is unknown", lambda row: row.rollout.started_ns),
    Hidden("ended_ns", "count", "by the session's clock; 0 if the time is unknown", lambda row: row.rollout.ended_ns),
    Hidden("drafts", "count", "drafts of an agent that judges its own work", lambda row: len(row.rollout.drafts)),
    Hidden("is_accepted", "flag", "whether one of them was accepted", lambda row: any(each.accepted for each in row.rollout.drafts)),
    *map(_part, PARTS),
)

#: Each attempt at a rollout: the time in which it was under way.
ATTEMPTS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("rollout", "count", "number of its rollout's row", lambda row: row.number),
    FrameColumn("session", "count", "which session of the run it ran in", lambda row: row.span.session),
    FrameColumn("started_ns", "count", "by the session's clock", lambda row: row.span.started_ns),
    FrameColumn("ended_ns", "count", "by the session's clock", lambda row: row.span.ended_ns),
)

#: Each program of a command agent: the time in which it ran.
PROGRAMS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("rollout", "count", "number of its rollout's row", lambda row: row.number),
    FrameColumn("started_ns", "count", "by the session's clock", lambda row: row.span.started_ns),
    FrameColumn("ended_ns", "count", "by the session's clock", lambda row: row.span.ended_ns),
    FrameColumn("cpu_s", "number", "CPU time of all its processes", lambda row: row.span.cpu_s, "s"),
)

#: Each score that the first and the chosen draft of a rollout have.
DRAFTS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("rollout", "count", "number of its rollout's row", lambda row: row.number),
    FrameColumn("score", "text", "the scorer", lambda row: row.score),
    FrameColumn("first", "number", "of the first draft", lambda row: row.first),
    FrameColumn("chosen", "number", "of the draft that counts", lambda row: row.chosen),
)

SCORES: tuple[FrameColumn[Any], ...] = (
    *PLACE,
    FrameColumn("score", "text", "the scorer", lambda row: row.score),
    FrameColumn("part", "text", "a part of the score; nothing for the score itself", lambda row: row.part),
    FrameColumn("value", "number", "the score, or the part", lambda row: row.value),
    FrameColumn("better", "text", "`higher` or `lower`; nothing if the scorer does not declare it, and for a part", _better),
    FrameColumn("score_unit", "text", "the unit of the score, if its scorer declares one", lambda row: row.scale.unit or None),
    FrameColumn("error", "text", "why there is no score", lambda row: row.error),
    FrameColumn("explanation", "text", "what the scorer says of it", lambda row: row.explanation),
)
