"""Frames and slices, from which metrics are computed.

A frame has the rollouts, calls and events of runs as columns. A slice is a part of a frame, such as the rollouts of one suite. Every metric
is a function of a slice. Each rollout, call and event is a row; `table_columns` defines the columns. A frame takes
about 500 bytes per call and 28 per event. `frame_reader` builds frames from rollouts, and `registry` defines the metrics:

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

STATISTICS = tuple(each.name for each in fields(LatencySpread) if each.name != "intervals")  # names of the statistics of a duration

MetricValue: TypeAlias = LatencySpread | float | None


class MetricFunction(NamedTuple):
    """The function that computes a metric for a slice (some rollouts of a run), and the kind of value that it returns."""

    of: Callable[[Slice], MetricValue]
    is_duration: bool  # whether it returns the spread of durations, which has statistics, and not a single number


@dataclass(frozen=True)
class Frame:
    """Rollouts with their calls and events as columns. Rollouts are in the order in which they were read, as are their calls and events."""

    rollouts: FrameTable
    calls: FrameTable  # LLM calls of all attempts, including those of judges
    attempts: FrameTable
    programs: FrameTable  # programs of command agents
    drafts: FrameTable  # scores of drafts
    stamps: Ragged  # call -> timestamps of its output events, nanoseconds of the session clock
    tokens: Ragged  # call -> tokens of each output event; empty if the server does not count them per event
    lags: Ragged  # successful call -> nanoseconds until each output event was read; empty for user-space timestamps
    gaps: Mapping[str, Ragged]  # metric of events -> successful call -> its values, nanoseconds
    evened: Ragged  # call with late timestamps -> gaps between evenly spread output events, nanoseconds
    metrics: Mapping[str, MetricFunction]  # name -> metric

    def scenarios(self, terms: Terms | None = None) -> Slice:
        """Returns a slice with the rollouts of scenarios, and with `terms` (latency objectives, prices, scores) for its metrics.

        It leaves out what no metric of a run includes: LLM calls that tests make by hand, and primers (first calls before a block).
        """
        return Slice(self, self.rollouts["kind"] == "scenario", terms=terms or Terms())

    @property
    def is_successful(self) -> Mask:
        """The calls that did not fail, as a mask."""
        return self.calls["is_successful"]

    def need_events(self, what: str) -> None:
        """Raises ConfigError if the frame was read without events. `what` names the metric that needs events."""
        if len(self.stamps.starts) <= len(self.calls):
            raise ConfigError(f"{what} needs the events of calls, but this frame was read without them; use read_frame(..., events=True)")

    def events(self, metric: str) -> Ragged:
        """Returns the values of a metric of events. Raises ConfigError if the frame was read without events."""
        self.need_events(metric)
        return self.gaps[metric]


@dataclass(frozen=True)
class Rows:
    """A view of selected rows of a table. `rows[name]` is a numpy array with the values of these rows."""

    table: FrameTable
    mask: Mask

    def __getitem__(self, name: str) -> NDArray[Any]:
        values = self.table[name]
        return values if self.mask.all() else values[self.mask]

    def __len__(self) -> int:
        return int(self.mask.sum())

    def of(self, mask: Mask) -> Rows:
        """Returns the selected rows for which another mask is true, too. The other mask covers all rows of the table."""
        return Rows(self.table, self.mask & mask)


@dataclass(frozen=True)
class Slice:
    """A part of a frame: selected rollouts with their attempts, calls and events, optionally limited to some time or to one role.

    Metrics are functions of slices. `where`, `within` and `on` return smaller or changed slices; a slice never changes.
    """

    frame: Frame
    chosen: Mask  # selected rollouts
    terms: Terms = field(default_factory=Terms)
    role: str | None = None  # role whose calls count, to any endpoint; None: calls to the backend under test, except judges'
    spans: Mapping[int, Sequence[Span]] | None = None  # session -> time that counts; None for all time
    only_active: bool = False  # whether only time counts in which at least one of these rollouts ran

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
        """Returns a slice with the rollouts that match all given values. If several groups are given, any of them matches.

        An empty `role` selects the calls of the agent itself. If a suite, variant, group or arm is given, the time of the slice, by which
        rates divide, is only the time in which any of its rollouts ran.
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
        """Returns the slice limited to some time. `spans` maps sessions to disjoint, ordered spans of the session's clock.

        The new slice contains the calls that were sent in a span, including the start and excluding the end. Tokens and ends of calls
        count if they are after the start, up to and including the end. A rollout counts by the share of its duration that lies in the
        spans.
        """
        return replace(self, spans=spans)

    def on(self, terms: Terms) -> Slice:
        """Returns the slice with other `terms`: latency objectives, token prices and scores that metrics use."""
        return replace(self, terms=terms)

    def value(self, name: str) -> float | None:
        """Returns the value of a metric such as `rollouts_per_hour`, or of a statistic such as `ttft.p50` (milliseconds).

        Returns None if there is no value. Raises ConfigError if the metric or the statistic is unknown.
        """
        metric, dot, statistic = name.partition(".")
        function = self.frame.metrics.get(metric)
        if function is None:
            raise ConfigError(unknown_name("metric", metric, [*self.frame.metrics]))
        if not function.is_duration and dot:
            raise ConfigError(f"{metric} is a single number; write {metric}, not {name}")
        if function.is_duration and statistic not in STATISTICS:
            raise ConfigError(unknown_name(f"statistic of {metric}", statistic, STATISTICS))
        value = function.of(self)
        if isinstance(value, LatencySpread):
            number: float | None = getattr(value, statistic)
            return number
        return value

    @cached_property
    def timed(self) -> Slice:
        """The slice without rollouts whose times are unknown. Such a rollout would begin in 1970, which would make all rates wrong."""
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
        """All calls of the slice, even outside its time. Without a role, those to the backend under test, except judges'."""
        calls = self.frame.calls
        chosen = calls["measured"] if self.role is None else calls["role"] == self.role
        return Rows(calls, self.chosen[calls["rollout"]] & chosen)

    @cached_property
    def calls(self) -> Rows:
        """The calls of the slice, failed ones included. If its time is limited, the calls that were sent in that time."""
        calls = self.all_calls
        return calls if self.spans is None else calls.of(self._lies_within("sent_ns", "left"))

    @cached_property
    def successful_calls(self) -> Rows:
        """The calls that did not fail."""
        return self.calls.of(self.frame.is_successful)

    def _lies_within(self, column: str, side: str) -> Mask:
        """Returns for each call whether its timestamp in a column lies in the time of the slice.

        With `side="left"` a span includes its start and excludes its end; with `right` it excludes its start and includes its end.
        """
        calls, lies = self.frame.calls, np.zeros(len(self.frame.calls), np.bool_)
        for session, spans in (self.spans or {}).items():
            own = calls["session"] == session
            lies[own] = inside(calls[column][own], spans, side)
        return lies

    @cached_property
    def seconds(self) -> float:
        """The time of the slice in seconds. By default that is the sum over sessions of the time from the first start to the last end."""
        if self.spans is not None:
            return sum(map(timeline.total_ns, self.spans.values())) / 1e9
        if self.only_active:
            return sum(map(timeline.total_ns, self.active_spans.values())) / 1e9
        return sum(map(timeline.duration_ns, self.attempt_spans.values())) / 1e9

    @cached_property
    def active_spans(self) -> dict[int, list[Span]]:
        """Session -> spans in which a rollout ran, all attempts included. They are disjoint and ordered."""
        return {session: timeline.at_least(spans, 1) for session, spans in self.attempt_spans.items()}

    @cached_property
    def attempt_spans(self) -> dict[int, list[Span]]:
        """Session -> span of each attempt, by the session clock."""
        return spans_of(self.attempts["session"], self.attempts["started_ns"], self.attempts["ended_ns"])

    @cached_property
    def evaluable_spans(self) -> dict[int, list[Span]]:
        """Session -> span of each rollout that ended as `ok` or `limit`."""
        evaluable = self.rollouts.of(self.frame.rollouts["is_evaluable"])
        return spans_of(evaluable["session"], evaluable["started_ns"], evaluable["ended_ns"])

    @cached_property
    def call_spans(self) -> dict[int, list[Span]]:
        """Session -> span of each call, from sending the request to its end."""
        sent = self.all_calls.of(self.frame.calls["sent_ns"] != NEVER)
        return spans_of(sent["session"], sent["sent_ns"], sent["ended_ns"])

    @cached_property
    def rollouts_done(self) -> float:
        """The number of rollouts that ended as `ok` or `limit`. If the time is limited, the sum of the shares that lie in it."""
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
        """The number of successful calls. If the time is limited, those that ended in it."""
        succeeded = self.all_calls.mask & self.frame.is_successful
        return int((succeeded if self.spans is None else succeeded & self._lies_within("ended_ns", "right")).sum())

    @cached_property
    def output_tokens(self) -> float:
        """The number of output tokens of successful calls. If the time is limited, those that arrived in it."""
        if self.spans is None:
            return int(self.successful_calls["output_tokens"].sum(dtype=np.float64))
        succeeded = self.all_calls.mask & self.frame.is_successful
        return sum(
            self._tokens_within(succeeded & (self.frame.calls["session"] == session), spans) for session, spans in self.spans.items()
        )

    def _tokens_within(self, calls: Mask, spans: Sequence[Span]) -> float:
        """Returns the number of output tokens that arrived within some spans of time.

        If the server counts no tokens per event, each event of a call gets the same share of the call's tokens.
        """
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
        """Returns the known values in a column of the successful calls."""
        values = self.successful_calls[column]
        known: Floats = values[~np.isnan(values)]
        return known

    def durations(self, metric: str) -> Floats:
        """Returns the values of a metric of events in milliseconds."""
        return milliseconds(self.frame.events(metric).of(self.successful_calls.mask))


def milliseconds(nanoseconds: Counts) -> Floats:
    """Returns durations in milliseconds, rounded to the microsecond, which is the resolution of timestamps."""
    microseconds = nanoseconds + 500
    microseconds //= 1000  # in place, because there may be millions of values
    return microseconds / 1e3


def spans_of(session: Counts, start: Counts, end: Counts) -> dict[int, list[Span]]:
    """Returns session -> its spans, given columns with the session, start and end of each span."""
    return {
        int(each): [*zip(start[own].tolist(), end[own].tolist(), strict=True)]
        for each in dict.fromkeys(session.tolist())
        for own in [session == each]
    }


def inside(stamps: Counts, spans: Sequence[Span], side: str) -> Mask:
    """Returns for each timestamp whether it lies in one of the spans, which are disjoint and ordered.

    With `side="left"` a span includes its start and excludes its end; with `right` it excludes its start and includes its end.
    """
    if not spans:
        return np.zeros(len(stamps), np.bool_)
    edges = np.array(spans, np.int64).ravel()
    lies: Mask = np.searchsorted(edges, stamps, "right" if side == "left" else "left") % 2 == 1
    return lies
