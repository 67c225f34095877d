"""Rollouts, calls and events of runs as columns, and slices of them. Every number of a run is a function of a slice.

A rollout, a call and an event are a row each; `call_columns` and `rollout_columns` say what a row has. A frame keeps about 500 bytes a
call and 28 an event. `frame_reader` makes frames of rollouts, and `registry` has the metrics:

    frame = read_frame(origin)
    frame.scenarios().where(arm="a").value("ttft.p50")  # milliseconds
    frame.scenarios().where(arm="a").value("rollouts_per_hour")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.metrics import timeline
from pytest_agentbench.metrics.columns import NEVER, FrameTable, Ragged
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.metrics.timeline import Span
from pytest_agentbench.records import arm_of
from pytest_agentbench.stats.quantiles import LatencySpread

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Counts, Floats, Mask

STATISTICS = tuple(each.name for each in fields(LatencySpread) if each.name != "intervals")  # names of statistics that durations have

MetricValue: TypeAlias = LatencySpread | float | None


class MetricFunction(NamedTuple):
    """A metric, as slices compute it."""

    of: Callable[[Slice], MetricValue]
    is_duration: bool  # whether it is a spread of durations, which has statistics, and not a single number


@dataclass(frozen=True)
class Frame:
    """The columns of rollouts, in the order in which they were read. Rows of calls and events are in the order of their rollouts."""

    rollouts: FrameTable
    calls: FrameTable  # LLM calls of all attempts, also those of judges
    attempts: FrameTable
    programs: FrameTable  # programs of command agents
    drafts: FrameTable  # scores of drafts
    stamps: Ragged  # call -> nanoseconds by the session's clock, of each output event
    tokens: Ragged  # call -> tokens of each output event, if the server counts them; otherwise no values
    lags: Ragged  # call that went well -> nanoseconds that each output event waited to be read; none of stamps of user space
    gaps: Mapping[str, Ragged]  # metric of events -> call that went well -> nanoseconds, its values
    evened: Ragged  # call with late stamps -> nanoseconds, the gaps between its output events if those were spread evenly
    metrics: Mapping[str, MetricFunction]  # name -> metric

    def scenarios(self, terms: Terms | None = None) -> Slice:
        """Returns the rollouts of scenarios: all but calls by hand and primers, which are in no number of a run."""
        return Slice(self, self.rollouts["kind"] == "scenario", terms=terms or Terms())

    @property
    def is_successful(self) -> Mask:
        """Returns for each call whether it did not fail."""
        return self.calls["is_successful"]

    def need_events(self, what: str) -> None:
        """Raises ConfigError if the frame was read without events, of which something is to be computed."""
        if len(self.stamps.starts) <= len(self.calls):
            raise ConfigError(f"{what} needs the events of calls, and this frame was read without them")

    def events(self, metric: str) -> Ragged:
        """Returns the values of a metric of events; raises ConfigError if the frame was read without events."""
        self.need_events(metric)
        return self.gaps[metric]


@dataclass(frozen=True)
class Rows:
    """Some rows of a table; `rows[name]` is a numpy array."""

    table: FrameTable
    mask: Mask

    def __getitem__(self, name: str) -> NDArray[Any]:
        values = self.table[name]
        return values if self.mask.all() else values[self.mask]

    def __len__(self) -> int:
        return int(self.mask.sum())

    def of(self, mask: Mask) -> Rows:
        """Returns the rows for which another mask, over all rows of the table, is true as well."""
        return Rows(self.table, self.mask & mask)


@dataclass(frozen=True)
class Slice:
    """Some rollouts of a frame: their attempts, their calls to the backend under test and the events of those, in some of their time."""

    frame: Frame
    chosen: Mask  # rollouts
    terms: Terms = field(default_factory=Terms)
    role: str | None = None  # the role whose calls count, to any endpoint; None: all calls to the backend under test, except judges'
    spans: Mapping[int, Sequence[Span]] | None = None  # session -> the time that counts; None: all
    only_active: bool = False  # whether only the time counts in which at least one of these rollouts ran

    def where(
        self,
        *,
        suite: str | None = None,
        variant: str | None = None,
        group: str | Collection[str] | None = None,
        arm: str | None = None,
        role: str | None = None,
        session: int | None = None,
    ) -> Slice:
        """Returns the part with all of these, of several groups the part with any of them; `role` is empty for the agent itself.

        The time of a suite, a variant, a group or an arm is the time in which any of its rollouts ran.
        """
        texts = {"suite": suite, "variant": variant, "group": group}
        chosen = self.chosen
        for name, text in texts.items():
            if text is not None:
                chosen = chosen & np.isin(self.frame.rollouts[name], [text] if isinstance(text, str) else [*text])
        if arm is not None:
            chosen = chosen & np.fromiter((arm_of(each) == arm for each in self.frame.rollouts["variant"]), np.bool_, len(chosen))
        if session is not None:
            chosen = chosen & (self.frame.rollouts["session"] == session)
        only_active = self.only_active or arm is not None or any(text is not None for text in texts.values())
        return replace(self, chosen=chosen, role=self.role if role is None else role, only_active=only_active)

    def within(self, spans: Mapping[int, Sequence[Span]]) -> Slice:
        """Returns the part within some time: session -> spans by its clock, in order and apart from each other.

        Its calls are those that were sent in a span, from its start to before its end. Tokens and ends of calls count if they came after
        the start and up to the end. A rollout counts by the share of it that lies in a span.
        """
        return replace(self, spans=spans)

    def on(self, terms: Terms) -> Slice:
        """Returns the slice with other objectives, prices and scores."""
        return replace(self, terms=terms)

    def value(self, name: str) -> float | None:
        """Returns the value of a metric, such as `rollouts_per_hour`, or of a statistic of one, such as `ttft.p50` (milliseconds).

        None if there is no value; raises ConfigError for an unknown metric or statistic.
        """
        metric, dot, statistic = name.partition(".")
        function = self.frame.metrics.get(metric)
        if function is None:
            raise ConfigError(unknown_name("metric", metric, [*self.frame.metrics]))
        if not function.is_duration and dot:
            raise ConfigError(f"{metric} is a single number; leave out .{statistic}")
        if function.is_duration and statistic not in STATISTICS:
            raise ConfigError(unknown_name(f"statistic of {metric}", statistic, STATISTICS))
        value = function.of(self)
        if isinstance(value, LatencySpread):
            number: float | None = getattr(value, statistic)
            return number
        return value

    @cached_property
    def timed(self) -> Slice:
        """The slice without rollouts that have no times. Their span would begin in 1970 and be in every rate."""
        return replace(self, chosen=self.chosen & (self.frame.rollouts["ended_ns"] != 0))

    @cached_property
    def rollouts(self) -> Rows:
        return Rows(self.frame.rollouts, self.chosen)

    @cached_property
    def attempts(self) -> Rows:
        return Rows(self.frame.attempts, self.chosen[self.frame.attempts["rollout"]])

    @cached_property
    def programs(self) -> Rows:
        return Rows(self.frame.programs, self.chosen[self.frame.programs["rollout"]])

    @cached_property
    def drafts(self) -> Rows:
        return Rows(self.frame.drafts, self.chosen[self.frame.drafts["rollout"]])

    @cached_property
    def all_calls(self) -> Rows:
        """Calls at any time."""
        calls = self.frame.calls
        chosen = calls["measured"] if self.role is None else calls["role"] == self.role
        return Rows(calls, self.chosen[calls["rollout"]] & chosen)

    @cached_property
    def calls(self) -> Rows:
        """Calls, those that failed included; of a part of the time those that were sent in it."""
        calls = self.all_calls
        return calls if self.spans is None else calls.of(self._lies_within("sent_ns", "left"))

    @cached_property
    def successful_calls(self) -> Rows:
        """The calls that did not fail."""
        return self.calls.of(self.frame.is_successful)

    def _lies_within(self, column: str, side: str) -> Mask:
        """Returns for each call whether a stamp of it lies in the time of the slice: from a start on (`left`), or after it (`right`)."""
        calls, lies = self.frame.calls, np.zeros(len(self.frame.calls), np.bool_)
        for session, spans in (self.spans or {}).items():
            own = calls["session"] == session
            lies[own] = inside(calls[column][own], spans, side)
        return lies

    @cached_property
    def seconds(self) -> float:
        """The time of the slice: of each session from the first start to the last end of a rollout, without pauses between sessions."""
        if self.spans is not None:
            return sum(map(timeline.total_ns, self.spans.values())) / 1e9
        if self.only_active:
            return sum(map(timeline.total_ns, self.active_spans.values())) / 1e9
        return sum(map(timeline.duration_ns, self.attempt_spans.values())) / 1e9

    @cached_property
    def active_spans(self) -> dict[int, list[Span]]:
        """Session -> when any of the rollouts ran, all attempts included: spans in order and apart from each other."""
        return {session: timeline.at_least(spans, 1) for session, spans in self.attempt_spans.items()}

    @cached_property
    def attempt_spans(self) -> dict[int, list[Span]]:
        """Session -> when each attempt at a rollout ran, by the session's clock."""
        return spans_of(self.attempts["session"], self.attempts["started_ns"], self.attempts["ended_ns"])

    @cached_property
    def evaluable_spans(self) -> dict[int, list[Span]]:
        """Session -> when each rollout ran that ended as `ok` or `limit`."""
        evaluable = self.rollouts.of(self.frame.rollouts["is_evaluable"])
        return spans_of(evaluable["session"], evaluable["started_ns"], evaluable["ended_ns"])

    @cached_property
    def call_spans(self) -> dict[int, list[Span]]:
        """Session -> when each call was in flight, from its send to its end."""
        sent = self.all_calls.of(self.frame.calls["sent_ns"] != NEVER)
        return spans_of(sent["session"], sent["sent_ns"], sent["ended_ns"])

    @cached_property
    def rollouts_done(self) -> float:
        """Rollouts that ended as `ok` or `limit`; of a part of the time as much of each as lies in it."""
        if self.spans is None:
            return int(self.rollouts["is_evaluable"].sum())
        return sum(
            timeline.overlap_ns(own, spans) / (own[1] - own[0])
            for session, spans in self.spans.items()
            for own in self.evaluable_spans.get(session, ())
            if own[0] < own[1]
        )

    @cached_property
    def calls_done(self) -> int:
        """Calls that ended and did not fail."""
        succeeded = self.all_calls.mask & self.frame.is_successful
        return int((succeeded if self.spans is None else succeeded & self._lies_within("ended_ns", "right")).sum())

    @cached_property
    def output_tokens(self) -> float:
        """Output tokens of calls that did not fail; of a part of the time those that came in it."""
        if self.spans is None:
            return int(self.successful_calls["output_tokens"].sum(dtype=np.float64))
        succeeded = self.all_calls.mask & self.frame.is_successful
        return sum(
            self._tokens_within(succeeded & (self.frame.calls["session"] == session), spans) for session, spans in self.spans.items()
        )

    def _tokens_within(self, calls: Mask, spans: Sequence[Span]) -> float:
        """Tokens of calls that came within spans. Each output event has the tokens that the server counts, or as many as the others."""
        frame = self.frame
        frame.need_events("the number of tokens in a part of the time")
        uncounted = calls & (frame.tokens.counts == 0)
        within = Ragged(inside(frame.stamps.values, spans, "right"), frame.stamps.starts)
        counted = calls & ~uncounted
        events = frame.stamps.counts[uncounted]
        each = frame.calls["output_tokens"][uncounted] / np.maximum(events, 1)
        return float(frame.tokens.of(counted)[within.of(counted)].sum(dtype=np.float64)) + float(
            np.repeat(each, events)[within.of(uncounted)].sum()
        )

    def known(self, column: str) -> Floats:
        """Returns the values in a column of the calls that did not fail, without those that are unknown."""
        values = self.successful_calls[column]
        known: Floats = values[~np.isnan(values)]
        return known

    def durations(self, metric: str) -> Floats:
        """Returns the milliseconds of a metric of events."""
        return milliseconds(self.frame.events(metric).of(self.successful_calls.mask))


def milliseconds(nanoseconds: Counts) -> Floats:
    """Returns durations of events to the microsecond, which is as fine as stamps are."""
    microseconds = nanoseconds + 500
    microseconds //= 1000  # in its place, as there may be millions
    return microseconds / 1e3


def spans_of(session: Counts, start: Counts, end: Counts) -> dict[int, list[Span]]:
    """Returns session -> its spans, in their order."""
    return {
        int(each): [*zip(start[own].tolist(), end[own].tolist(), strict=True)]
        for each in dict.fromkeys(session.tolist())
        for own in [session == each]
    }


def inside(stamps: Counts, spans: Sequence[Span], side: str) -> Mask:
    """Returns for each stamp whether it lies in one of the spans, which are in order and apart from each other.

    `left`: from the start of a span to before its end; `right`: after its start up to its end.
    """
    if not spans:
        return np.zeros(len(stamps), np.bool_)
    edges = np.array(spans, np.int64).ravel()
    lies: Mask = np.searchsorted(edges, stamps, "right" if side == "left" else "left") % 2 == 1
    return lies
