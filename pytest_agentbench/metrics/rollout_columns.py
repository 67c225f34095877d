"""The columns of the tables `rollouts` (a row for each rollout) and `scores` (a row for each score and each part of a score)."""

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


def _metric(value: Callable[[Rollout], float]) -> Callable[[RolloutRow], float | None]:
    return lambda row: value(row.rollout) / 1e6 if row.rollout.ended_ns else None


def _part(part: str) -> FrameColumn[RolloutRow]:
    """Returns the column with the time that an activity of a rollout, such as `decoding`, took."""
    about = f"time of the activity `{part}`; empty if the times of the rollout are unknown"
    return Hidden(f"{part}_part_ms", "number", about, lambda row: row.parts.get(part))


def _better(row: ScoreRow) -> str | None:
    return row.scale.better if row.scale.declared else None


def columns() -> tuple[FrameColumn[Any], ...]:
    """Returns the columns of rollouts, including those of all metrics that are registered at the time of the call."""
    functions = {metric: metric.of_rollout for metric in registry.METRICS if metric.of_rollout is not None}
    metrics = (FrameColumn(metric.key, "number", metric.definition, _metric(function), "ms") for metric, function in functions.items())
    return *_BEFORE_METRICS, *metrics, *_AFTER_METRICS


_BEFORE_METRICS: tuple[FrameColumn[Any], ...] = (
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

_AFTER_METRICS: tuple[FrameColumn[Any], ...] = (
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
