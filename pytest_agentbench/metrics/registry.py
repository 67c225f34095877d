"""Every metric of a run, once: reports, exports, rules, objectives, diffs and the page read them here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_agentbench.metrics import slice_metrics, timings
from pytest_agentbench.records import LLMCall, Rollout
from pytest_agentbench.stats.quantiles import LatencySpread, latency_spread

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import MetricFunction, MetricValue, Slice
    from pytest_agentbench.stats.series import Floats

MetricLevel = Literal["event", "call", "rollout", "session", "suite", "score"]


@dataclass(frozen=True)
class Metric:
    """A metric: a function of a slice of a run's rollouts.

    A metric of events, calls or rollouts is a duration: nanoseconds in records, milliseconds (`ttft_ms`) everywhere else. Of a slice it
    is the spread of the durations. All other metrics are single numbers.
    """

    name: str  # in rules, options and run.json
    title: str  # in reports
    # what has one value: an event has one of `itl`, a session one of `rollouts_per_hour`, a suite one of `cost`, a score one of `accuracy`
    level: MetricLevel
    definition: str  # a line of docs/metrics.md; where the term is not the field's own it says by whom
    of_call: Callable[[LLMCall], float | None] | None = None  # nanoseconds; of an event's metric the call's largest, which objectives judge
    of_events: Callable[[LLMCall], list[int]] | None = None  # nanoseconds
    of_rollout: Callable[[Rollout], float] | None = None  # nanoseconds
    of_slice: Callable[[Slice], float | None] | None = None  # of a session's or a suite's metric
    compared: bool = True  # rules, objectives and comparisons may ask for it; if not, it stands in run.json and reports alone
    expected: bool = False  # a call without one cannot be judged by an objective; otherwise it breaks none
    rising: bool = False  # more is better
    digits: int = 1  # of a rate, in reports
    timed: bool = True  # a client that cannot keep up spoils it
    money: bool = False  # in the currency of the backend's prices

    @property
    def key(self) -> str:
        """In run.json and in properties of tests."""
        return self.name if self.level in ("session", "suite", "score") else f"{self.name}_ms"

    @property
    def judged_key(self) -> str:
        """The column of calls that objectives judge: of events the largest value of the call."""
        return f"{self.name}_max_ms" if self.level == "event" else self.key

    def values_of(self, call: LLMCall) -> list[float]:
        """Returns the nanoseconds of a call, or of its events."""
        if self.of_events is not None:
            return [*self.of_events(call)]
        return [] if self.of_call is None or (value := self.of_call(call)) is None else [value]

    def of(self, part: Slice) -> MetricValue:
        """Returns the number of a slice, or the spread of its durations in milliseconds; None if there is no value."""
        return latency_spread(self.durations(part)) if self.of_slice is None else self.number(part)

    def number(self, part: Slice) -> float | None:
        """Returns the number of a slice; None if it is unknown. A function may return a number of numpy."""
        value = None if self.of_slice is None else self.of_slice(part)
        return None if value is None or math.isnan(value) else float(value)

    def durations(self, part: Slice) -> Floats:
        """Returns the milliseconds of a slice: one of each event, call or rollout that has a value."""
        if self.level == "event":
            return part.durations(self.name)
        return part.known(self.key) if self.level == "call" else part.rollouts[self.key]


def longest_gap_ns(call: LLMCall) -> int | None:
    """What the objective `itl` is about: a stall breaks the promise."""
    return max(timings.itl_ns(call), default=None)


def duration_ns(rollout: Rollout) -> float:
    """From the start to the end of a rollout's last attempt."""
    return rollout.ended_ns - rollout.started_ns


#: In the order of reports. A new one is one entry here.
METRICS = (
    Metric(
        "ttft",
        "TTFT",
        "call",
        "time to first token: last byte of the request sent, to the first event with content, reasoning or a tool call",
        of_call=timings.ttft_ns,
        expected=True,
    ),
    Metric(
        "itl",
        "ITL",
        "event",
        "inter-token latency: the gaps between events with text, of all calls together, so that a stall is one of them. "
        "A server that packs several tokens into an event shows one gap for them",
        of_call=longest_gap_ns,
        of_events=timings.itl_ns,
    ),
    Metric(
        "tpot",
        "TPOT",
        "call",
        "time per output token after the first event, one value a call: (last - first event) / (tokens - tokens of the first event)",
        of_call=timings.tpot_ns,
    ),
    Metric("e2e", "E2E", "call", "last byte of the request sent, to the end of the answer", of_call=timings.e2e_ns, expected=True),
    Metric(
        "client_queue",
        "client queue",
        "call",
        "the agent's call, to the request's last byte sent, without the wait for a rate limit: what the client took, not the backend. "
        "Never in TTFT",
        of_call=timings.client_queue_ns,
        compared=False,
    ),
    Metric(
        "server_queue",
        "queued",
        "call",
        "what the server says a call waited before its prefill began: ThunderAgent's pause, Dynamo's prefill wait. TTFT has it in it",
        of_call=timings.server_queue_ns,
        compared=False,
    ),
    Metric(
        "served_ttft",
        "TTFT served",
        "call",
        "TTFT without the time that the server says the call was queued",
        of_call=timings.served_ttft_ns,
        compared=False,
    ),
    Metric("rollout", "rollout", "rollout", "start to end of a rollout, its last attempt", of_rollout=duration_ns),
    Metric(
        "first_event",
        "first event",
        "call",
        "as TTFT, to the first event of any kind, a bare role included",
        of_call=timings.first_event_ns,
        compared=False,
    ),
    Metric(
        "first_answer",
        "first answer",
        "call",
        "as TTFT, to the first event with content or a tool call: reasoning does not count",
        of_call=timings.first_answer_ns,
        compared=False,
    ),
    Metric(
        "output_tokens_per_s",
        "output tok/s",
        "session",
        "output tokens of successful calls / time from the first start to the last end of a rollout; ramp and drain are in it",
        rising=True,
        of_slice=slice_metrics.output_tokens_per_s,
    ),
    Metric(
        "rollouts_per_hour",
        "rollouts/h",
        "session",
        "`ok` and `limit` rollouts per hour over the same time: the jobs per hour",
        rising=True,
        digits=0,
        of_slice=slice_metrics.rollouts_per_hour,
    ),
    Metric(
        "calls_per_minute",
        "LLM calls/min",
        "session",
        "successful LLM calls per minute over the same time",
        rising=True,
        of_slice=slice_metrics.calls_per_minute,
    ),
    Metric(
        "speedup",
        "speedup",
        "session",
        "output tok/s of the run / mean output tok/s of its calls: how many calls' worth of output came at a time",
        rising=True,
        digits=2,
        of_slice=slice_metrics.speedup,
    ),
    Metric(
        "prefix_cache_hit_ratio",
        "hit ratio",
        "session",
        "prefix cache: cached prompt tokens / prompt tokens, over the calls whose usage names both; unknown when none does",
        rising=True,
        digits=2,
        timed=False,
        of_slice=slice_metrics.prefix_cache_hit_ratio,
    ),
    Metric(
        "call_prefix_cache_hit_ratio",
        "hit ratio/call",
        "session",
        "the mean of the same ratio of each call, in which a short prompt weighs as much as a long one",
        rising=True,
        digits=2,
        timed=False,
        of_slice=slice_metrics.call_prefix_cache_hit_ratio,
    ),
    Metric(
        "goodput_per_s",
        "goodput",
        "session",
        "calls that met all objectives of `--agentbench-slo` per second over the same time",
        of_slice=slice_metrics.goodput_per_s,
        rising=True,
        digits=2,
    ),
    Metric(
        "tokens_per_rollout",
        "tokens/rollout",
        "suite",
        "prompt and output tokens of calls to the backend in the last attempt of a measured rollout, their mean. "
        "Unknown when a call that went well names no prompt tokens",
        timed=False,
        of_slice=slice_metrics.tokens_per_rollout,
    ),
    Metric(
        "seconds_per_rollout",
        "s/rollout",
        "suite",
        "duration of the last attempt of a measured rollout, their mean",
        of_slice=slice_metrics.seconds_per_rollout,
    ),
    Metric(
        "score_per_1k_tokens",
        "score/1k tok",
        "suite",
        "the main score's mean over all / tokens per rollout x 1,000",
        rising=True,
        timed=False,
        of_slice=slice_metrics.score_per_1k_tokens,
    ),
    Metric(
        "score_per_second",
        "score/s",
        "suite",
        "the main score's mean over all / seconds per rollout",
        rising=True,
        of_slice=slice_metrics.score_per_second,
    ),
    Metric(
        "cost",
        "cost",
        "suite",
        "what calls to the backend of all rollouts cost by its `prices`, those of all attempts and failed ones with the tokens "
        "that they name. Unknown when a call that went well names no prompt tokens",
        timed=False,
        money=True,
        of_slice=slice_metrics.cost,
    ),
    Metric(
        "cost_per_rollout",
        "cost/rollout",
        "suite",
        "cost / measured rollouts",
        timed=False,
        money=True,
        of_slice=slice_metrics.cost_per_rollout,
    ),
    Metric(
        "cost_per_pass",
        "cost/pass",
        "suite",
        "cost / rollouts that [passed](#pass-rates)",
        timed=False,
        money=True,
        of_slice=slice_metrics.cost_per_pass,
    ),
    Metric(
        "accuracy",
        "accuracy",
        "score",
        "share of right answers, of each question first; agents that raised are wrong. Its 95 % interval is Wilson's, of the questions",
        compared=False,
        rising=True,
        timed=False,
    ),
    Metric(
        "calibration_error",
        "calibration",
        "score",
        "[how far confidence is from accuracy](hle.md#accuracy-and-calibration): root of the mean square over bins of 100 answers "
        "(Hendrycks et al. 2019), from 0 to 1",
        compared=False,
        timed=False,
    ),
)


def latencies(*levels: MetricLevel, compared: bool = False) -> dict[str, Metric]:
    """Durations by name, of some levels or of all; with `compared` without those that nothing may ask for."""
    return {
        each.name: each for each in METRICS if each.level in (levels or ("event", "call", "rollout")) and (each.compared or not compared)
    }


def functions() -> dict[str, MetricFunction]:
    """Returns all metrics but those of scores, as slices compute them."""
    from pytest_agentbench.metrics.frame import MetricFunction

    return {each.name: MetricFunction(each.of, each.of_slice is None) for each in METRICS if each.level != "score"}


def numbers(part: Slice, level: MetricLevel) -> dict[str, float | None]:
    """Returns name -> number of a slice, of all metrics of a session or of a suite."""
    return {each.name: each.number(part) for each in METRICS if each.level == level and each.of_slice}


def spreads(part: Slice, *levels: MetricLevel) -> dict[str, LatencySpread | None]:
    """Returns `ttft_ms` -> spread in a slice, of the durations of some levels or of all."""
    return {each.key: latency_spread(each.durations(part)) for each in latencies(*levels).values()}


def rates() -> dict[str, Metric]:
    """What a run has one number of, by name."""
    return {each.name: each for each in METRICS if each.level == "session"}


def efficiency() -> dict[str, Metric]:
    """What a suite has one number of, by name."""
    return {each.name: each for each in METRICS if each.level == "suite"}


def answers() -> dict[str, Metric]:
    """What a score of answers has one number of, by name."""
    return {each.name: each for each in METRICS if each.level == "score"}


def single() -> dict[str, Metric]:
    """What a run, or each of its suites, has one number of, by name."""
    return rates() | efficiency()


def objectives() -> dict[str, Metric]:
    """What a call can meet or miss, by name."""
    return latencies("event", "call", compared=True)


def gated() -> dict[str, Metric]:
    """Latencies whose percentiles may stand in rules and comparisons, by name: gaps of one stream are too alike for that."""
    return latencies("call", "rollout", compared=True)


def title_of(name: str) -> str:
    """In reports."""
    return next(each.title for each in METRICS if each.name == name)
