"""The sentences of reports about serving speed, timing quality, and the metrics that servers report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_agentbench.backends.telemetry.engine_stats import Gauge, GpuUse, ServingSummary
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import (
    GoodputSummary,
    PartOfTime,
    PerformanceSummary,
    SlowCall,
    SteadyCalls,
    SteadyRollouts,
    WindowSummary,
)
from pytest_agentbench.metrics.stopwatch import SATURATED, Stopwatch, unusable_reason
from pytest_agentbench.metrics.timeline import InFlight, part_names
from pytest_agentbench.records import ERROR_KINDS
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.phrases import brackets, count, each_count, number, percent, seconds_text, short
from pytest_agentbench.runs.nodes import LaunchRecord, NodeRecord
from pytest_agentbench.stats.quantiles import HIGH, needed

ENOUGH = 3  # samples taken during the calls; with fewer, no mean and no peak is shown

#: Why a run has no TTFT, and how to measure it.
NO_TTFT = "no call was streamed; --agentbench-set agent.stream_upgrade=true measures it"

DEFINITIONS: Text = (
    "TTFT: last request byte sent to first content, reasoning or tool-call text. ITL: gaps between output events, pooled. ",
    "TPOT: (last - first) / (tokens - tokens of the first event) per call. Client queue: from the agent's call to the send. ",
    *("Timestamps: ", Code("user"), " ones are taken in the tap's process, ", Code("kernel"), " ones when the packet is received."),
)

INTERVALS = (
    "In brackets: 95 % intervals from order statistics, as if the values were independent. "
    "Calls of one scenario and gaps of one stream are not, so the intervals are too narrow."
)

SLOW_CALLS: Text = (
    *("Times are in milliseconds; prompt, cached and output are tokens. ", Code("agentbench show RUN --profile", "command")),
    " shows why these calls were slow, the agents' call tree, concurrency spikes, and shared prompt prefixes.",
)

NO_LATENCIES = "No LLM call was measured, so there are no latencies."

CACHED = "of the prompt tokens were cached"

RECORDED = "not shown: the answers come from a recording, so they have the speed of its playback"

CLOCKS = (
    "Clock width: the clock of a node is compared with that of the session by the order of messages, and this is how far apart the bounds "
    "are. Latencies do not depend on it, and rates hardly do. Lag: the longest delay of a timer. Nice: above 0, other processes take "
    "precedence."
)

NEVER = "never"

ADJUSTED = "TTFT, failed calls count as never"

#: Metrics of a session that `throughput` does not list: reports show them elsewhere, or not at all, as LLM calls/min.
NAMED_METRICS = (
    *("output_tokens_per_s", "rollouts_per_hour", "calls_per_minute", "speedup"),
    *("prefix_cache_hit_ratio", "call_prefix_cache_hit_ratio", "goodput_per_s"),
)


def failed_of_all(performance: PerformanceSummary) -> str:
    """`9 of 15 LLM calls failed: 9 cut`: a sentence with the number of failures of each kind. Empty if no call failed."""
    return _failures(performance, " failed")


def _failures(performance: PerformanceSummary, verb: str) -> str:
    failed = sum(performance.failed_calls.values())
    return f"{failed} of {performance.calls} LLM calls{verb}: {each_count(performance.failed_calls)}" if failed else ""


def is_streamed(performance: PerformanceSummary) -> bool:
    """Returns whether a call was streamed, so that the run has a TTFT."""
    return performance.latency("ttft") is not None


def time_of(part: str, of_time: PartOfTime, streamed: bool = True) -> str:
    """`64.9 % of the rollouts' time went to decoding`: the share of one part of the time."""
    return f"{percent(of_time.share)} of the rollouts' time went to {part_names(streamed)[part]}"


def node_left(node: NodeRecord) -> str:
    """`w3 on node-c: its tap died, 2 attempts were made again`: why a node worker left before the end of the session."""
    again = f", {count(node.lost, 'attempt')} made again" if node.lost else ""
    return f"{node.place}: {node.why_left}{again}"


def launched(launch: LaunchRecord) -> str:
    """`slurm, job 17: all machines were there after 34 s; it was cancelled`: how the node workers of a session were started."""
    name = f"{launch.launcher}, {launch.id}" if launch.id else launch.launcher
    there = "not all machines were there" if launch.queue_s is None else f"all machines were there after {launch.queue_s:.0f} s"
    waiting = f" ({launch.waiting})" if launch.waiting else ""
    return "; ".join((f"{name}: {there}{waiting}", *launch.problems))


def uncertain_rates(parts: Sequence[str]) -> str:
    """Returns the parts of the time over which rates are too uncertain, because the clocks of nodes are not known well enough."""
    return f"uncertain over {' and '.join(parts)}, because the clocks of the nodes are known only to more than 1 % of that time"


def timing_verdict(stopwatch: Stopwatch) -> str:
    """Returns the verdict on timing quality, and whether gates on timings are INCONCLUSIVE because of it."""
    if stopwatch.verdict is None:
        return "no verdict: no call was streamed, so only the whole time of each call (E2E) was measured"
    return str(stopwatch.verdict) + (", timing gates are INCONCLUSIVE" if stopwatch.verdict == SATURATED else "")


def timing(stopwatch: Stopwatch) -> str:
    """Returns the verdict on timing quality, followed by its reasons."""
    return ": ".join(filter(None, (timing_verdict(stopwatch), "; ".join(stopwatch.reasons))))


def timing_of_run(stopwatch: Stopwatch) -> str:
    """`timings: warn: ...`: the verdict on timing quality and its reasons as one item of a list."""
    return f"timings: {timing(stopwatch)}"


def timing_trouble(stopwatch: Stopwatch) -> str:
    """Returns a short warning about timing quality, and where to read more."""
    what = "unreliable: this machine was too busy to time the calls" if stopwatch.verdict == SATURATED else "not all of them are usable"
    return f'{what} ({stopwatch.verdict}); see "timing quality" in report.md'


def not_usable(stopwatch: Stopwatch) -> str:
    """`not usable: client-saturated`: the remark on a timing that cannot be trusted, instead of its interval."""
    return f"not usable: {stopwatch.verdict if stopwatch.verdict == SATURATED else 'events were read too late'}"


def timing_evidence(stopwatch: Stopwatch) -> str:
    """Returns the measurements behind the verdict on timing quality. Empty without output events."""
    if stopwatch.clean_share is None:
        return ""
    facts = [f"{percent(stopwatch.clean_share)} of the output events have a timestamp of their own"]
    if stopwatch.late_share:
        facts.append(f"{percent(stopwatch.late_share)} share one because they were read late")
        facts.append(f"in {percent(stopwatch.late_calls_share)} of the calls")
    if stopwatch.read_lag_ms is not None:
        facts.append(f"read lag p99 {stopwatch.read_lag_ms:.2f} ms")
    if stopwatch.client_queue_ms is not None:
        facts.append(f"client queue p99 {stopwatch.client_queue_ms:.1f} ms")
    shares = (("tap", stopwatch.tap_cpu), ("pool", stopwatch.pool_cpu))
    facts += [f"{name} at most {percent(share)} of a core" for name, share in shares if share is not None]
    return ", ".join(facts)


def delayed_acknowledgements(stopwatch: Stopwatch) -> str:
    """Returns how many calls could have a later first event with a client that delays acknowledgements. Empty if there are none."""
    if not stopwatch.delayed_ack_share:
        return ""
    return (
        f"up to 40 ms later in {percent(stopwatch.delayed_ack_share)} of the calls for clients that delay acknowledgements, if the server "
        "does not set TCP_NODELAY; the tap acknowledges at once"
    )


def calls(performance: PerformanceSummary) -> str:
    """Returns the number of calls, and where their token counts and timestamps come from."""
    failed = each_count(performance.failed_calls)
    all_calls = f"{performance.calls:,} LLM calls{f' ({failed})' if failed else ''} in {short(performance.span_s)} s"
    sources, timestamps = (", ".join(names) or "none" for names in (performance.token_sources, performance.stamps))
    return f"{all_calls}, token counts from {sources}, timestamps: {timestamps}"


def failed_calls(performance: PerformanceSummary) -> str:
    """`9 of 15 LLM calls: 9 cut`: the text after the label `failed`. Empty if no call failed."""
    return _failures(performance, "")


def failed_kind(kind: str, amount: int) -> str:
    """`9 cut: the stream ended before its end mark`: the failed calls of a kind, and what the kind means."""
    return f"{amount} {kind}: {ERROR_KINDS.get(kind, 'unknown')}"


def speed(performance: PerformanceSummary, stopwatch: Stopwatch) -> str:
    """`TTFT 45.7 ms (median) [39.8, 85.9], 293.9 output tokens/s`: the speed of a run in one line. Empty without calls.

    A TTFT that is not usable says so, and has no interval. Without streamed calls there is none, and E2E takes its place.
    """
    parts = []
    if spread := performance.latency("ttft"):
        unusable = unusable_reason(stopwatch, "ttft.p50")
        value = "(median, not usable)" if unusable else f"(median) {brackets(spread.intervals.get('p50'))}"
        parts.append(f"{registry.title_of('ttft')} {number(spread.p50)} ms {value}".rstrip())
    elif spread := performance.latency("e2e"):
        parts.append(f"{registry.title_of('e2e')} {number(spread.p50)} ms (median) {brackets(spread.intervals.get('p50'))}".rstrip())
    if rate := performance.number("output_tokens_per_s"):
        parts.append(f"{number(rate)} output tokens/s")
    return ", ".join(parts)


def high_latency(p90: float | None) -> str:
    """`p90 12.0 ms`: the 90th percentile of a latency. Empty if too few calls were measured."""
    return "" if p90 is None else f"p90 {number(p90)} ms"


def tokens_and_calls(performance: PerformanceSummary) -> str:
    """`12,345 tokens of 62 calls in 1.1 s`: the counts behind the throughput."""
    return f"{performance.output_tokens:,} tokens of {performance.calls:,} calls in {short(performance.span_s)} s"


def in_flight(performance: PerformanceSummary) -> str:
    """`in flight 8 peak, 7.8 mean`: the number of concurrent rollouts."""
    flight = performance.rollouts_in_flight or InFlight(0, 0.0)
    return f"in flight {flight.peak} peak, {flight.mean:.1f} mean"


def throughput(performance: PerformanceSummary) -> str:
    """Returns the rates of the run: tokens, rollouts, and prefix cache hits."""
    rates = {name: performance.number(name) for name in registry.rates()}
    ratio, of_calls = rates["prefix_cache_hit_ratio"], rates["call_prefix_cache_hit_ratio"]
    speedup = "" if rates["speedup"] is None else f" ({rates['speedup']:.2f} times the mean of a call)"
    others = [metric for name, metric in registry.rates().items() if name not in NAMED_METRICS and rates[name] is not None]
    return (
        f"{number(rates['output_tokens_per_s'])} output tok/s{speedup}, {number(rates['rollouts_per_hour'], 0)} rollouts/h, "
        f"{''.join(f'{number(rates[each.name], each.digits)} {each.title}, ' for each in others)}"
        f"prefix cache hit ratio {'unknown' if ratio is None else f'{ratio:.2f} ({of_calls:.2f} mean of calls)'}, "
        f"{in_flight(performance)}"
    )


def steady(performance: PerformanceSummary) -> str:
    """Returns the rates while at least 90 % of the configured concurrency was in flight."""
    rates = performance.steady
    windows = (("rollouts", rates.rollouts), ("calls", rates.calls))
    return "; ".join(_steady(window, f"at least 90 % of {rates.asked} {name} in flight") for name, window in windows)


def _steady(window: SteadyCalls | None, what: str) -> str:
    if window is None:
        return f"at no time were {what}"
    per_hour = f", {number(window.rollouts_per_hour, 0)} rollouts/h" if isinstance(window, SteadyRollouts) else ""
    rates = f"{number(window.output_tokens_per_s)} output tok/s{per_hour}"
    return f"{rates} in the {seconds_text(window.seconds)} ({percent(window.share)}) with {what}"


def chosen_window(window: WindowSummary) -> str:
    """Returns the rates in the window that the user chose, or that it contains no calls."""
    ends = f"{window.start_s:g} s" + (" on" if window.end_s is None else f" to {window.end_s:g} s")
    if not window.seconds:
        return f"nothing was measured from {ends} after the first call: the run ended {window.run_s:.1f} s after it"
    if not window.calls:
        return f"no LLM call was sent from {ends} after the first one, in {seconds_text(window.seconds)}"
    failed = f" ({window.failed_calls} failed)" if window.failed_calls else ""
    measured = window.metrics
    rates = f"{number(measured['output_tokens_per_s'])} output tok/s, {number(measured['rollouts_per_hour'], 0)} rollouts/h"
    all_calls = f"{number(measured['calls_per_minute'])} LLM calls/min, {window.calls} LLM calls{failed}"
    return f"{rates}, {all_calls} in the {seconds_text(window.seconds)} from {ends} after the first call"


def goodput(value: GoodputSummary) -> str:
    """Returns how many calls met all latency objectives, and which objectives the others missed."""
    objectives = ", ".join(f"{name} <= {limit:g} ms" for name, limit in value.slo_ms.items())
    of = value.good_calls + value.bad_calls
    missed = each_count(value.missed)
    return (
        f"{value.good_calls:,} of {of:,} calls good ({percent(value.attainment)}), "
        f"{number(value.goodput_per_s, 2)} good calls/s under {objectives}"
        f"{f'; missed: {missed}' if missed else ''}"
        f"{f'; {unknown:,} could not be judged' if (unknown := value.unknown_calls) else ''}"
    )


def split(value: Mapping[str, PartOfTime], streamed: bool = True) -> str:
    """`decoding 64.9 %, tools 20.1 %`: the shares of the rollouts' time by part."""
    names = part_names(streamed)
    return ", ".join(f"{title} {percent(value[part].share)}" for part, title in names.items() if part in value)


def few_values(performance: PerformanceSummary) -> str:
    """Returns why a table of latencies has dashes. Empty if it has none."""
    tables = [table for table in performance.latencies.values() if table]
    if all(getattr(table, f"p{q}") is not None for table in tables for q in HIGH):
        return ""
    return f"A dash means too few values: {', '.join(f'p{q} needs {needed(q)} values' for q in HIGH if q != 50)}."


def call_place(call: SlowCall) -> str:
    """`2 of 4, attempt 2`: the position of a call in its attempt."""
    return f"{call.number} of {call.of}" + f", attempt {call.attempt}" * (call.attempt > 1)


def server_cache(serving: ServingSummary) -> str:
    """`prefix cache hit ratio 0.92 (vllm:prefix_cache_hits_total), 3 preemptions`: the server's own counts."""
    cache = serving.prefix_cache
    ratio = "unknown" if cache.hit_ratio is None else f"{cache.hit_ratio:.2f} ({cache.source})"
    preemptions = "" if serving.preemptions is None else f", {serving.preemptions:.0f} preemptions"
    return f"prefix cache hit ratio {ratio}{preemptions}"


def server_load(serving: ServingSummary) -> str:
    """Returns the use of the KV cache and the running and waiting requests. Says so if there were too few samples."""
    if serving.rounds < ENOUGH:
        return f"KV cache and requests: {_too_short(serving.rounds, serving.every_s)}"
    usage = serving.kv_usage
    used = "unknown" if usage.max is None else f"{percent(usage.mean)} mean, {percent(usage.max)} peak"
    return f"KV cache {used}; requests: running {_load(serving.running)}, waiting {_load(serving.waiting)}"


def sampling_gap(serving: ServingSummary) -> str:
    """Returns the longest time between two samples, and the sampling interval."""
    return f"up to {serving.longest_gap_s:.1f} s between two samples, instead of {serving.every_s:g} s"


def counter_resets(serving: ServingSummary) -> str:
    """`counters fell 2 times: a process was restarted`: a note on the server's counters. Empty if none fell."""
    return f"counters fell {count(serving.resets, 'time')}: a process was restarted" if serving.resets else ""


def gpu(use: GpuUse, every_s: float) -> str:
    """`40,000 of 81,559 MiB at most, 93.1 % busy, 512 W mean`: the use of a GPU. Says so if there were too few samples."""
    if use.looks < ENOUGH:
        return _too_short(use.looks, every_s)
    busy = "unknown how" if use.sm_percent_mean is None else f"{use.sm_percent_mean:.1f} %"
    watts = "power unknown" if use.power_w_mean is None else f"{number(use.power_w_mean, 0)} W mean"
    return f"{use.used_mib_max:,} of {use.total_mib:,} MiB at most, {busy} busy, {watts}"


def samples(serving: ServingSummary) -> str:
    """Returns the number of samples, and the file that contains them."""
    return f"{count(serving.looks, 'sample')}, all in samples.jsonl in this directory."


def _too_short(looks: int, every_s: float) -> str:
    """Says that the run was too short: it has too few samples for a mean and a peak."""
    samples = count(looks, "sample") if looks else "no sample"
    return f"too short to sample: {samples} during the calls (one every {every_s:g} s)"


def _load(load: Gauge) -> str:
    return "unknown" if load.max is None else f"{number(load.mean)} mean {load.max:.0f} peak"
