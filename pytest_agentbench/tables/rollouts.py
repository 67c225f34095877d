"""The tables `rollouts` and `scores`: a row for each rollout, and one for each of its scores and their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.records import UNDECLARED, LLMCall, Rollout, Scale
from pytest_agentbench.tables.columns import Column
from pytest_agentbench.tables.places import PLACE, RolloutPlace


class RolloutRow(NamedTuple):
    """One rollout."""

    place: RolloutPlace

    @property
    def rollout(self) -> Rollout:
        return self.place.rollout

    def epoch_s(self, stamp: int) -> float | None:
        return self.place.origin.calendar.epoch_s(self.rollout.session, stamp)


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
    return lambda row: value(row.rollout) / 1e6 if row.rollout.started_ns else None


def _better(row: ScoreRow) -> str | None:
    return row.scale.better if row.scale.declared else None


ROLLOUTS: tuple[Column[Any], ...] = (
    *PLACE,
    Column("session", "count", "which session of the run it ran in, counted from 1", lambda row: row.rollout.session),
    Column("cluster", "text", "of its scenario", lambda row: row.rollout.cluster),
    Column("status", "text", "how it ended", lambda row: row.rollout.status),
    Column("reason", "text", "why it is not `ok`", lambda row: row.rollout.reason or None),
    Column("attempts", "count", "how many there were, this one included", lambda row: len(row.rollout.attempts)),
    Column("started_s", "number", "start of the last attempt, since 1970", lambda row: row.epoch_s(row.rollout.started_ns), "s"),
    Column("ended_s", "number", "end of it, since 1970", lambda row: row.epoch_s(row.rollout.ended_ns), "s"),
    *(
        Column(metric.key, "number", metric.definition, _metric(metric.of_rollout), "ms")
        for metric in registry.METRICS
        if metric.of_rollout is not None
    ),
    Column("turns", "count", "LLM calls that the agent made", lambda row: row.rollout.turns),
    Column("calls", "count", "LLM calls of the last attempt, failed ones included", lambda row: len(row.rollout.calls)),
    Column("failed_calls", "count", "of them, those that failed", lambda row: len(row.rollout.calls) - len(_good(row.rollout))),
    Column("tool_calls", "count", "tool calls", lambda row: len(row.rollout.tool_calls)),
    Column("tools", "text", "names of the tools called, in order, with spaces between them", lambda row: " ".join(row.rollout.tools)),
    Column("expected_tools", "text", "those that the labels expect", lambda row: " ".join(row.rollout.expected_tools)),
    Column("prompt_tokens", "number", "of good calls", _total(lambda call: call.prompt_tokens), "tokens"),
    Column("cached_tokens", "number", "prompt tokens from the prefix cache", _total(lambda call: call.cached_tokens), "tokens"),
    Column("output_tokens", "number", "of good calls", _total(timings.output_tokens), "tokens"),
)

SCORES: tuple[Column[Any], ...] = (
    *PLACE,
    Column("score", "text", "the scorer", lambda row: row.score),
    Column("part", "text", "a part of the score; nothing for the score itself", lambda row: row.part),
    Column("value", "number", "the score, or the part", lambda row: row.value),
    Column("better", "text", "`higher` or `lower`; nothing if the scorer does not declare it, and for a part", _better),
    Column("score_unit", "text", "the unit of the score, if its scorer declares one", lambda row: row.scale.unit or None),
    Column("error", "text", "why there is no score", lambda row: row.error),
    Column("explanation", "text", "what the scorer says of it", lambda row: row.explanation),
)
