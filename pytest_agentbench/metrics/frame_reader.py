"""Builds frames from rollouts, with one rollout in memory at a time."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

from pytest_agentbench.metrics import data_columns, registry, timings
from pytest_agentbench.metrics.columns import Growth, Origin, RaggedGrowth, RolloutPlace
from pytest_agentbench.metrics.data_columns import ATTEMPTS, DRAFTS, PROGRAMS, CallRow, DraftRow, RolloutRow, SpanRow, draft_rows
from pytest_agentbench.metrics.frame import Frame
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.records import LLMCall, Rollout


class FrameReader:
    """Collects rollouts and builds a frame of them. Rollouts may also be added after `frame` was called, for a later frame."""

    def __init__(self, origin: Origin | None = None, *, events: bool = True) -> None:
        """Prepares empty tables. `origin` is the run of the rollouts. Without `events`, the output events of calls are left out."""
        self._origin, self._with_events = origin or Origin("", Path(), Calendar()), events
        self._rollouts: Growth[RolloutRow] = Growth("rollouts", data_columns.rollout_columns())
        self._calls: Growth[CallRow] = Growth("calls", data_columns.call_columns())
        self._attempts: Growth[SpanRow] = Growth("attempts", ATTEMPTS)
        self._programs: Growth[SpanRow] = Growth("programs", PROGRAMS)
        self._drafts: Growth[DraftRow] = Growth("drafts", DRAFTS)
        self._stamps, self._tokens, self._lags, self._evened = RaggedGrowth(), RaggedGrowth(), RaggedGrowth(), RaggedGrowth()
        self._gaps = {name: RaggedGrowth() for name in registry.latencies("event")}
        self._count = 0  # number of rollouts so far

    def add(self, rollout: Rollout) -> None:
        """Adds a rollout of the run that was given to the constructor."""
        self._origin.calendar.learn(rollout)
        self.add_place(RolloutPlace(self._origin, rollout))

    def add_place(self, place: RolloutPlace) -> None:
        """Adds a rollout of any run. The rollout must have been passed to `learn` of the run's `Calendar`, which converts its times."""
        place, self._count = place._replace(number=self._count), self._count + 1
        self._rollouts.add(RolloutRow(place))
        for attempt in place.rollout.attempts:
            self._attempts.add(SpanRow(place.number, attempt))
        for program in place.rollout.programs:
            self._programs.add(SpanRow(place.number, program))
        for draft in draft_rows(place):
            self._drafts.add(draft)
        for row in data_columns.call_rows(place):
            self._calls.add(row)
            if self._with_events:
                self._add_events(row)

    def _add_events(self, row: CallRow) -> None:
        call = row.call
        succeeded = call.error_kind is None
        self._stamps.add([chunk.at_ns for chunk in call.output])
        self._tokens.add(tokens_of_events(call))
        self._lags.add([chunk.lag_ns for chunk in call.output if chunk.lag_ns is not None] if succeeded else ())
        for name, gaps in self._gaps.items():
            gaps.add([*map(int, row.values[name])] if succeeded else ())
        self._evened.add(timings.itl_ns(row.late.evened) if row.late.places else ())

    def frame(self) -> Frame:
        """Returns a frame with all rollouts so far."""
        return Frame(
            self._rollouts.table(),
            self._calls.table(),
            self._attempts.table(),
            self._programs.table(),
            self._drafts.table(),
            self._stamps.ragged(),
            self._tokens.ragged(),
            self._lags.ragged(),
            {name: gaps.ragged() for name, gaps in self._gaps.items()},
            self._evened.ragged(),
            registry.functions(),
        )


def tokens_of_events(call: LLMCall) -> list[int]:
    """Returns the number of tokens in each output event of a call. Empty if no event before the last one has a count of the server.

    The last event gets the tokens of the call that no earlier event has.
    """
    earlier = call.output[:-1]
    if not any(chunk.tokens is not None for chunk in earlier):
        return []
    so_far = [0, *accumulate((chunk.tokens or 0 for chunk in earlier), max), timings.output_tokens(call)]
    return [after - before for before, after in pairwise(so_far)]
