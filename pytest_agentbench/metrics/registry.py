"""The registry of metrics (METRICS). Reports, exports, rules, objectives and comparisons all use these definitions."""

from __future__ import annotations

import math
import re
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
    """The definition of a metric: its names, and the functions that compute it for a call, a rollout or a slice of rollouts.

    Metrics of events, calls and rollouts are durations: nanoseconds in records, milliseconds (`ttft_ms`) everywhere else. Their value for
    a slice is a spread with statistics. All other metrics are single numbers.
    """

    name: str  # name in rules, options and run.json
    title: str  # name in reports
    # object that has one value of the metric: an event (`itl`), a call (`ttft`), a rollout, a session (`rollouts_per_hour`), a suite
    # (`cost`), or a score (`accuracy`)
    level: MetricLevel
    definition: str  # text in the tables of docs/reference/metrics.md
    of_call: Callable[[LLMCall], float | None] | None = None  # value of a call, nanoseconds; for events the largest, which objectives judge
    of_events: Callable[[LLMCall], list[int]] | None = None  # values of the events of a call, nanoseconds
    of_rollout: Callable[[Rollout], float] | None = None  # value of a rollout, nanoseconds
    of_slice: Callable[[Slice], float | None] | None = None  # value of a slice, for metrics of sessions and suites
    compared: bool = True  # whether rules, objectives and comparisons accept it; if not, only run.json and reports contain it
    expected: bool = False  # whether an objective cannot judge a call without a value; if not, such a call meets it
    rising: bool = False  # whether higher values are better
    digits: int = 1  # decimal places of a rate in reports
    timed: bool = True  # whether an overloaded client makes it wrong
    money: bool = False  # whether its unit is the currency of the backend's prices

    @property
    def key(self) -> str:
        """The key in run.json and in properties of tests."""
        return self.name if self.level in ("session", "suite", "score") else f"{self.name}_ms"

    @property
    def judged_key(self) -> str:
        """Column of the table `calls` that a latency objective is compared with. For metrics of events it has the call's maximum."""
        return f"{self.name}_max_ms" if self.level == "event" else self.key

    def values_of(self, call: LLMCall) -> list[float]:
        """Returns the values of the metric for a call, or for its events, in nanoseconds."""
        if self.of_events is not None:
            return [*self.of_events(call)]
        return [] if self.of_call is None or (value := self.of_call(call)) is None else [value]

    def of(self, part: Slice) -> MetricValue:
        """Returns the metric for a slice: a number, or the spread of durations in milliseconds. None if there is no value."""
        return latency_spread(self.durations(part)) if self.of_slice is None else self.number(part)

    def number(self, part: Slice) -> float | None:
        """Returns a metric that is a single number for a slice, as a Python float. None if it is unknown."""
        value = None if self.of_slice is None else self.of_slice(part)
        return None if value is None or math.isnan(value) else float(value)

    def durations(self, part: Slice) -> Floats:
        """Returns the durations in a slice in milliseconds, one for each event, call or rollout that has a value."""
        if self.level == "event":
            return part.durations(self.name)
        return part.known(self.key) if self.level == "call" else part.rollouts[self.key]


def longest_gap_ns(call: LLMCall) -> int | None:
    """Returns the longest gap between output events in nanoseconds, or None without a gap.

    The latency objective `itl` is compared with it, so that a single stall misses the objective.
    """
    return max(timings.itl_ns(call), default=None)


def duration_ns(rollout: Rollout) -> float:
    """Returns the duration of a rollout's last attempt in nanoseconds."""
    return rollout.ended_ns - rollout.started_ns


#: All metrics in the order of reports. A new metric only needs an entry here.
METRICS = (
    Metric(
        "ttft",
        "TTFT",
        "call",
        "time to first token: from sending the last byte of the request to the first event with content, reasoning or a tool call",
        of_call=timings.ttft_ns,
        expected=True,
    ),
    Metric(
        "itl",
        "ITL",
        "event",
        "inter-token latency: gaps between output events, of all calls together, so that a stall is one of them. "
        "A server that sends several tokens in one event has one gap for them",
        of_call=longest_gap_ns,
        of_events=timings.itl_ns,
    ),
    Metric(
        "tpot",
        "TPOT",
        "call",
        "time per output token after the first event, one value per call: (last - first event) / (tokens - tokens of the first event)",
        of_call=timings.tpot_ns,
    ),
    Metric(
        "e2e",
        "E2E",
        "call",
        "from sending the last byte of the request to the end of the answer",
        of_call=timings.e2e_ns,
        expected=True,
    ),
    Metric(
        "client_queue",
        "client queue",
        "call",
        "from the agent's call to sending the last byte of the request, without delays by a rate limit: "
        "time of the client, not the backend. TTFT does not include it",
        of_call=timings.client_queue_ns,
        compared=False,
    ),
    Metric(
        "server_queue",
        "queued",
        "call",
        "wait before the prefill as reported by the server: ThunderAgent's pause, Dynamo's prefill wait. TTFT includes it",
        of_call=timings.server_queue_ns,
        compared=False,
    ),
    Metric(
        "served_ttft",
        "TTFT served",
        "call",
        "TTFT without the wait that the server reports as queued",
        of_call=timings.served_ttft_ns,
        compared=False,
    ),
    Metric("rollout", "rollout", "rollout", "duration of the last attempt of a rollout", of_rollout=duration_ns),
    Metric(
        "first_event",
        "first event",
        "call",
        "like TTFT, but to the first event of any kind, including a bare role",
        of_call=timings.first_event_ns,
        compared=False,
    ),
    Metric(
        "first_answer",
        "first answer",
        "call",
        "like TTFT, but to the first event with content or a tool call, not reasoning",
        of_call=timings.first_answer_ns,
        compared=False,
    ),
    Metric(
        "output_tokens_per_s",
        "output tok/s",
        "session",
        "output tokens of successful calls / time from the first start to the last end of a rollout, including ramp-up and drain",
        rising=True,
        of_slice=slice_metrics.output_tokens_per_s,
    ),
    Metric(
        "rollouts_per_hour",
        "rollouts/h",
        "session",
        "rollouts with the status `ok` or `limit` per hour of the same time",
        rising=True,
        digits=0,
        of_slice=slice_metrics.rollouts_per_hour,
    ),
    Metric(
        "calls_per_minute",
        "LLM calls/min",
        "session",
        "successful LLM calls per minute of the same time",
        rising=True,
        of_slice=slice_metrics.calls_per_minute,
    ),
    Metric(
        "speedup",
        "speedup",
        "session",
        "output tok/s of the run / mean output tok/s of its calls: the number of calls whose output arrived at the same time",
        rising=True,
        digits=2,
        of_slice=slice_metrics.speedup,
    ),
    Metric(
        "prefix_cache_hit_ratio",
        "hit ratio",
        "session",
        "prefix cache: cached prompt tokens / prompt tokens, over the calls whose usage reports both; unknown if there are none",
        rising=True,
        digits=2,
        timed=False,
        of_slice=slice_metrics.prefix_cache_hit_ratio,
    ),
    Metric(
        "call_prefix_cache_hit_ratio",
        "hit ratio/call",
        "session",
        "mean over calls of the same ratio, so that short and long prompts have the same weight",
        rising=True,
        digits=2,
        timed=False,
        of_slice=slice_metrics.call_prefix_cache_hit_ratio,
    ),
    Metric(
        "goodput_per_s",
        "goodput",
        "session",
        "calls that met all objectives of `--agentbench-slo` per second of the same time",
        of_slice=slice_metrics.goodput_per_s,
        rising=True,
        digits=2,
    ),
    Metric(
        "tokens_per_rollout",
        "tokens/rollout",
        "suite",
        "mean number of prompt and output tokens of calls to the backend in the last attempt of a measured rollout. "
        "Unknown if a successful call has no count of prompt tokens",
        timed=False,
        of_slice=slice_metrics.tokens_per_rollout,
    ),
    Metric(
        "seconds_per_rollout",
        "s/rollout",
        "suite",
        "mean duration of the last attempt of a measured rollout",
        of_slice=slice_metrics.seconds_per_rollout,
    ),
    Metric(
        "score_per_1k_tokens",
        "score/1k tok",
        "suite",
        "mean of the main score over all measured rollouts / tokens per rollout x 1,000",
        rising=True,
        timed=False,
        of_slice=slice_metrics.score_per_1k_tokens,
    ),
    Metric(
        "score_per_second",
        "score/s",
        "suite",
        "mean of the main score over all measured rollouts / seconds per rollout",
        rising=True,
        of_slice=slice_metrics.score_per_second,
    ),
    Metric(
        "cost",
        "cost",
        "suite",
        "cost of calls to the backend by its `prices`, for all attempts of all rollouts; failed calls count with the tokens that they "
        "report. Unknown if a successful call has no count of prompt tokens",
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
        "share of right answers, averaged per question first; agent errors are wrong. Its 95 % interval is Wilson's over the questions",
        compared=False,
        rising=True,
        timed=False,
    ),
    Metric(
        "calibration_error",
        "calibration",
        "score",
        "[difference between confidence and accuracy](hle.md#accuracy-and-calibration): root mean square over bins of 100 answers "
        "(Hendrycks et al. 2019), from 0 to 1",
        compared=False,
        timed=False,
    ),
)


def latencies(*levels: MetricLevel, compared: bool = False) -> dict[str, Metric]:
    """Returns name -> metric for the durations of some levels (`event`, `call`, `rollout`), or of all three if none is given.

    With `compared`, durations that gate rules, objectives and comparisons do not accept are left out.
    """
    return {
        each.name: each for each in METRICS if each.level in (levels or ("event", "call", "rollout")) and (each.compared or not compared)
    }


def functions() -> dict[str, MetricFunction]:
    """Returns the functions of all metrics by name, except those of scores."""
    from pytest_agentbench.metrics.frame import MetricFunction

    return {each.name: MetricFunction(each.of, each.of_slice is None) for each in METRICS if each.level != "score"}


def numbers(part: Slice, level: MetricLevel) -> dict[str, float | None]:
    """Returns the numbers of a slice by name, for all metrics of a level (`session` or `suite`)."""
    return {each.name: each.number(part) for each in METRICS if each.level == level and each.of_slice}


def spreads(part: Slice, *levels: MetricLevel) -> dict[str, LatencySpread | None]:
    """Returns the spreads of a slice by key, such as `ttft_ms`, for the durations of some levels: `event`, `call`, `rollout`."""
    return {each.key: latency_spread(each.durations(part)) for each in latencies(*levels).values()}


def rates() -> dict[str, Metric]:
    """Returns all metrics by name that have one value per session, such as `rollouts_per_hour`."""
    return {each.name: each for each in METRICS if each.level == "session"}


def efficiency() -> dict[str, Metric]:
    """Returns all metrics by name that have one value per suite, such as `cost`."""
    return {each.name: each for each in METRICS if each.level == "suite"}


def answers() -> dict[str, Metric]:
    """Returns all metrics by name that have one value per score, such as `accuracy`. They are about right and wrong answers."""
    return {each.name: each for each in METRICS if each.level == "score"}


def single() -> dict[str, Metric]:
    """Returns all metrics by name that are a single number of a session or of a suite."""
    return rates() | efficiency()


def objectives() -> dict[str, Metric]:
    """Returns all metrics by name for which users can set a latency objective."""
    return latencies("event", "call", compared=True)


def gated() -> dict[str, Metric]:
    """Returns all metrics by name whose percentiles gate rules and comparisons accept.

    Metrics of events are excluded, because the gaps of one stream are not independent.
    """
    return latencies("call", "rollout", compared=True)


def title_of(name: str) -> str:
    """Returns the name of a metric in reports."""
    return next(each.title for each in METRICS if each.name == name)


def definitions() -> dict[str, str]:
    """Returns title of a metric -> its definition as plain text, for tooltips."""
    return {each.title: re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", each.definition).replace("`", "") for each in METRICS}
