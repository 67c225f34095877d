"""Computes `dynamo_metrics` of inference_optimization.json: what Dynamo's own metrics say about a run, as the NeMo Agent Toolkit names it.

The toolkit asks a Prometheus server for them. Here they come from samples.jsonl and from the KV cache events of the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_agentbench.backends.telemetry.engine_stats import SampleTally
from pytest_agentbench.backends.telemetry.kv_cache import KvCacheUse
from pytest_agentbench.backends.telemetry.samples import Sample, Series, read_samples
from pytest_agentbench.records import Json
from pytest_agentbench.runs.run_file import Run

FRONTEND = "dynamo_frontend_"
TTFT, ITL = f"{FRONTEND}time_to_first_token_seconds_bucket", f"{FRONTEND}inter_token_latency_seconds_bucket"

#: Number that is a rate -> counters of which the first one that was sampled counts, and a factor.
RATES: Mapping[str, tuple[tuple[str, ...], float]] = {
    "kve_cached_tokens_rate": (("dynamo_component_thompson_kve_cached_tokens_total", f"{FRONTEND}cached_tokens_sum"), 1),
    "kve_prompt_tokens_rate": (("dynamo_component_thompson_kve_prompt_tokens_total", f"{FRONTEND}input_sequence_tokens_sum"), 1),
    "kve_device_blocks_rate": (("dynamo_component_thompson_kve_device_blocks_total",), 1),
    "kve_host_blocks_rate": (("dynamo_component_thompson_kve_host_blocks_total",), 1),
    "kve_disk_blocks_rate": (("dynamo_component_thompson_kve_disk_blocks_total",), 1),
    "requests_per_minute": ((f"{FRONTEND}requests_total",), 60),
    "token_throughput": ((f"{FRONTEND}output_tokens_total",), 1),
    "thompson_routing_decisions_rate": (("dynamo_component_thompson_routing_decisions_total",), 1),
    "thompson_requests_rate": (("dynamo_component_thompson_requests_total",), 1),
}

#: Number that is a mean over time -> gauge, and whether the series of several servers are added rather than averaged.
GAUGES: Mapping[str, tuple[str, bool]] = {
    "kv_cache_usage_percent": ("dynamo_component_kvstats_gpu_cache_usage_percent", False),
    "kv_cache_hit_rate_sglang": ("sglang:cache_hit_rate", False),
    "kv_cache_hit_rate_dynamo": ("dynamo_component_kvstats_gpu_prefix_cache_hit_rate", False),
    "inflight_requests_frontend": (f"{FRONTEND}inflight_requests", True),
    "inflight_requests_worker": ("dynamo_component_inflight_requests", True),
    "queued_requests": (f"{FRONTEND}queued_requests", True),
    "sglang_running_requests": ("sglang:num_running_reqs", True),
    "sglang_queue_depth": ("sglang:num_queue_reqs", True),
    "sglang_gen_throughput": ("sglang:gen_throughput", True),
    "sglang_utilization": ("sglang:utilization", False),
}

#: The numbers in the toolkit's order.
NAMES = (
    *("kve_cached_tokens_rate", "kve_prompt_tokens_rate", "kve_device_blocks_rate", "kve_host_blocks_rate", "kve_disk_blocks_rate"),
    *("kv_cache_usage_percent", "kv_cache_hit_rate_sglang", "kv_cache_hit_rate_dynamo"),
    *(f"{name}_p{q}" for name in ("ttft", "itl") for q in (50, 95, 99)),
    *("inflight_requests_frontend", "inflight_requests_worker", "queued_requests", "requests_per_minute", "token_throughput"),
    *("sglang_running_requests", "sglang_queue_depth", "sglang_gen_throughput", "sglang_utilization"),
    *("thompson_routing_decisions_rate", "thompson_requests_rate"),
)

COUNTERS = frozenset({TTFT, ITL, *(name for names, _ in RATES.values() for name in names)})
GAUGE_NAMES = frozenset(name for name, _ in GAUGES.values())


@dataclass
class GaugeMeans:
    """The means of gauges over the rounds of samples."""

    _now: dict[Series, float] = field(default_factory=dict)
    _sums: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # gauge -> a value for each round

    def add(self, sample: Sample) -> None:
        for series in sample.gone | sample.unknown:
            self._now.pop(series, None)
        self._now |= {series: value for series, value in sample.values.items() if series.name in GAUGE_NAMES}

    def end_round(self) -> None:
        for name, is_sum in GAUGES.values():
            if values := [value for series, value in self._now.items() if series.name == name]:
                self._sums[name].append(sum(values) if is_sum else sum(values) / len(values))

    def mean(self, name: str) -> float | None:
        values = self._sums[name]
        return sum(values) / len(values) if values else None


def dynamo_metrics(run: Run, directory: Path, arm: str) -> Json | None:
    """Returns `dynamo_metrics` of a run, or of one of its arms if each has a backend of its own. None if Dynamo's frontend was not sampled.

    Rates are over the time between the first sample and the last, and over all series. A number without a source is None.
    """
    tally, means, times = SampleTally(), GaugeMeans(), list[float]()
    last_round = None
    prefix = f"{arm}." if any(use.arm == arm for use in run.engines) and arm else ""
    for sample in read_samples(directory, COUNTERS | GAUGE_NAMES):
        if not isinstance(sample, Sample) or not sample.source[0].startswith(prefix):
            continue
        if last_round not in (None, sample.round):
            means.end_round()
        last_round = sample.round
        times.append(sample.at)
        means.add(sample)
        tally.add(replace(sample, values={series: value for series, value in sample.values.items() if series.name in COUNTERS}))
    means.end_round()
    moved = tally.moved
    if not times or not any(name.startswith(FRONTEND) for name in moved):
        return None
    caches = [use for use in run.kv_cache if use.service.startswith(prefix)]
    seconds = times[-1] - times[0]
    found = _from_run(run, caches, seconds, is_whole=not prefix) | _numbers(tally, means, seconds)
    notes = run.serving.notes if run.serving else ()
    numbers = {name: found.get(name) for name in NAMES}
    return {**numbers, "collection_timestamp": times[-1], "prometheus_url": None, "errors": list(notes)}


def _numbers(tally: SampleTally, means: GaugeMeans, seconds: float) -> Json:
    """Returns the numbers that have a metric of the toolkit's or another one that counts the same."""
    moved = tally.moved
    numbers: Json = {name: means.mean(gauge) for name, (gauge, _) in GAUGES.items()}
    for name, (counters, factor) in RATES.items():
        increase = next((moved[counter] for counter in counters if counter in moved), None)
        numbers[name] = increase * factor / seconds if increase is not None and seconds > 0 else None
    for name, metric in (("ttft", TTFT), ("itl", ITL)):
        buckets = cumulated(tally.increases, metric)
        numbers |= {f"{name}_p{q}": histogram_quantile(q / 100, buckets) for q in (50, 95, 99)}
    return {name: value for name, value in numbers.items() if value is not None}


def _from_run(run: Run, caches: Iterable[KvCacheUse], seconds: float, *, is_whole: bool) -> Json:
    """Returns numbers that the run itself has. `_numbers` has them only if Dynamo's component for them was sampled."""
    hits = [use.hit for use in caches if use.hit is not None]
    numbers: Json = {"kve_device_blocks_rate": sum(hits) / seconds} if hits and seconds > 0 else {}
    if run.serving and is_whole:
        usage = run.serving.kv_usage.mean
        numbers["kv_cache_usage_percent"] = None if usage is None else usage * 100
        numbers["kv_cache_hit_rate_dynamo"] = run.serving.prefix_cache.hit_ratio
    return numbers


def cumulated(increases: Mapping[Series, float], name: str) -> dict[float, float]:
    """Returns upper limit -> observations up to it, of a histogram in Prometheus format, summed over its series, the lowest limit first."""
    sums: defaultdict[float, float] = defaultdict(float)
    for series, increase in increases.items():
        if series.name == name:
            sums[float(dict(series.labels)["le"])] += increase
    return dict(sorted(sums.items()))


def histogram_quantile(q: float, buckets: Mapping[float, float]) -> float | None:
    """Returns a quantile by Prometheus' function of the same name: linear within a bucket. None without observations.

    A quantile above the highest finite limit is that limit.
    """
    limits = list(buckets)
    if not limits or limits[-1] != math.inf or not buckets[math.inf]:
        return None
    rank, below, low = q * buckets[math.inf], 0.0, 0.0
    for limit in limits[:-1]:
        if buckets[limit] >= rank:
            return low + (limit - low) * (rank - below) / (buckets[limit] - below) if buckets[limit] > below else limit
        below, low = buckets[limit], limit
    return low
