"""Statistics of a serving stack, computed from samples of its metrics: cache hits, load, preemptions and token counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, SampleSource, Series
from pytest_agentbench.metrics.timeline import Span


class Names(NamedTuple):
    """The names of the metrics of one kind of server, such as vLLM. A tuple lists alternative names, one of which a server has."""

    hits: str = ""  # prompt tokens found in the prefix cache
    hit_reports: str = ""  # counter that increases only if hits are reported; empty: they always are
    queries: str = ""  # prompt tokens looked up in the prefix cache
    kv_usage: tuple[str, ...] = ()  # share of the KV cache in use, 0 to 1
    running: str = ""  # requests that run
    waiting: str = ""  # requests that wait
    preemptions: str = ""
    prompt_tokens: str = ""
    output_tokens: str = ""
    ttft: str = ""  # histogram, seconds


#: Kind -> names of its metrics, nearest to the client first. The first kind that counted tokens is compared with the tap.
SERVERS: Mapping[str, Names] = {
    "dynamo": Names(
        hits="dynamo_frontend_cached_tokens_sum",
        hit_reports="dynamo_frontend_cached_tokens_count",
        queries="dynamo_frontend_input_sequence_tokens_sum",
        prompt_tokens="dynamo_frontend_input_sequence_tokens_sum",
        output_tokens="dynamo_frontend_output_sequence_tokens_sum",  # ..._output_tokens_total misses tokens of streamed tool calls
        ttft="dynamo_frontend_time_to_first_token_seconds",
    ),
    "vllm": Names(
        hits="vllm:prefix_cache_hits_total",
        queries="vllm:prefix_cache_queries_total",
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        preemptions="vllm:num_preemptions_total",
        prompt_tokens="vllm:prompt_tokens_total",
        output_tokens="vllm:generation_tokens_total",
        ttft="vllm:time_to_first_token_seconds",
    ),
    "sglang": Names(
        hits="sglang:cached_tokens_total",
        queries="sglang:prompt_tokens_total",
        kv_usage=("sglang:token_usage",),
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        preemptions="sglang:num_retracted_requests_total",
        prompt_tokens="sglang:prompt_tokens_total",
        output_tokens="sglang:generation_tokens_total",
        ttft="sglang:time_to_first_token_seconds",
    ),
}

#: Sources of cache hits, best first. Engines count them; a frontend knows them only from answers with usage.
HIT_SOURCES = ("vllm", "sglang", "dynamo")
GUESS = "dynamo_component_router_kv_hit_rate"  # histogram: share of hits of each request, as estimated by a router

GAUGES = frozenset(name for names in SERVERS.values() for name in (names.running, names.waiting, *names.kv_usage) if name)
COUNTERS = frozenset(
    name
    for names in SERVERS.values()
    for name in (
        *(names.hits, names.hit_reports, names.queries, names.preemptions, names.prompt_tokens, names.output_tokens),
        *(f"{histogram}_{part}" for histogram in (names.ttft, GUESS) for part in ("sum", "count")),
    )
    if name
)
#: Metrics with the time at which a process was started. A counter alone does not show a restart if it has grown again since then.
STARTED = frozenset({"process_start_time_seconds", "vllm:request_success_created"})
NAMES = GAUGES | COUNTERS | STARTED


@dataclass(frozen=True)
class CacheHits:
    """Hits of the prefix cache between two samples, from the server's counters."""

    hit_ratio: float | None  # hits / lookups, 0 to 1; null if nothing was looked up or no server reports it
    hit_tokens: float | None
    queried_tokens: float | None
    source: str | None = None  # name of the metric


@dataclass(frozen=True)
class Gauge:
    """Mean and maximum of a sampled metric over all rounds of samples."""

    mean: float | None
    max: float | None


@dataclass(frozen=True)
class ServerCounts:
    """The counts of one server, to be compared with those of the tap: a frontend if there is one, else the engines."""

    kind: str | None = None  # `dynamo`, `vllm` or `sglang`, from the names of its metrics
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    first_tokens: float = 0.0  # requests with a first token
    ttft_ms: float | None = None  # their mean TTFT


@dataclass(frozen=True)
class GpuUse:
    """The load of a GPU while calls were in progress. Without samples, all fields except `looks`, the number of samples, are null."""

    looks: int  # samples
    used_mib_max: int | None  # MiB
    total_mib: int | None  # MiB
    sm_percent_mean: float | None
    power_w_mean: float | None  # watts


@dataclass(frozen=True)
class EngineStats:
    """Statistics of a serving stack over a run, computed from samples of its metrics."""

    rounds: int  # rounds of samples while calls were in progress; the fields about load are over these
    longest_gap_s: float  # longest time without a sample while calls were in progress, in seconds
    resets: int  # samples with counters that had fallen, because a process was restarted
    prefix_cache: CacheHits  # from the first sample to the last
    kv_usage: Gauge  # share of the KV cache in use, 0 to 1
    running: Gauge  # requests that ran at the same time
    waiting: Gauge  # requests that waited at the same time
    preemptions: float | None
    server: ServerCounts
    gpus: Mapping[str, GpuUse]  # GPU -> its load; empty if no GPU was leased or NVML is not installed


@dataclass(frozen=True, kw_only=True)
class Looks:
    """How metrics were sampled during a run: number of rounds, failures and CPU time."""

    notes: tuple[str, ...]  # sentences about samples that could not be taken or written
    looks: int  # rounds of samples, each of all services
    every_s: float  # planned seconds between two rounds
    cpu_s: float  # CPU seconds used for sampling


@dataclass(frozen=True, kw_only=True)
class ServingSummary(Looks, EngineStats):
    """Statistics of the [server's metrics](metrics.md#what-the-server-says) over a run, and how they were sampled."""

    disagreements: tuple[str, ...]  # sentences about differences between the counts of server and tap


@dataclass
class SampleTally:
    """The sums over the samples of a run. Samples must be added in the order in which they were taken, followed by `end`.

    - Counters: increases are counted from the first sample of a replica on. A series that appears later started at 0. A series that fell or
      disappeared starts at 0 again, because its process was restarted. If the start of the process has changed, all of its series do.
    - If a stack was booted again, its samples begin with round 0 again. Its counters before that, such as those of readiness checks, do
      not count.
    - Gauges: their values at the end of each round of samples count, if calls were in progress then (`span`). A gauge that is not a finite
      number has no value until it is one again.
    """

    span: Span | None = None  # time in which calls were in progress; None: always
    increases: defaultdict[Series, float] = field(default_factory=lambda: defaultdict(float))  # series of a counter -> increase
    resets: int = 0  # samples with counters that had fallen
    restarted: set[SampleSource] = field(default_factory=set)  # replicas whose process was restarted
    known: set[SampleSource] = field(default_factory=set)  # replicas that have been sampled
    running: list[float] = field(default_factory=list)  # a value for each round
    waiting: list[float] = field(default_factory=list)
    kv_means: list[float] = field(default_factory=list)
    kv_peaks: list[float] = field(default_factory=list)
    rounds: int = 0  # rounds within `span`
    longest_gap_ns: int = 0  # longest time within `span` without a sample, including before the first and after the last one
    gpus: defaultdict[str, list[GpuSample]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[Series, float] = field(default_factory=dict)  # counters
    _now: dict[Series, float] = field(default_factory=dict)  # gauges
    _starts: dict[Series, float] = field(default_factory=dict)  # starts of processes
    _failing: set[SampleSource] = field(default_factory=set)
    _round: tuple[int, int] | None = None  # current round, and the time of its latest sample

    def add(self, sample: Sample | GpuSample) -> None:
        if self._round and self._round[0] != sample.round:
            self.end_round()
            self._note_gap(self._round[1], sample.at_ns)
        elif self._round is None and self.span is not None:
            self._note_gap(self.span[0], sample.at_ns)
        self._round = sample.round, sample.at_ns
        match sample:
            case GpuSample():
                looks = self.gpus[sample.gpu]  # Also adds an empty list for a GPU that has no sample within `span`.
                if self._is_within(sample.at_ns):
                    looks.append(sample)
            case Sample(failed="", source=source):
                if sample.first and not sample.round:
                    self._begin_again(source)
                self._failing.discard(source)
                self._take(sample)
                self.known.add(source)
            case Sample(source=source):
                self._failing.add(source)

    def end_round(self) -> None:
        """Adds the values that the gauges have at the end of a round of samples."""
        if self._round is None or not self._is_within(self._round[1]):
            return
        self.rounds += 1
        for values, names in (
            (self.running, [names.running for names in SERVERS.values()]),
            (self.waiting, [names.waiting for names in SERVERS.values()]),
        ):
            if gauges := self._gauges(names):
                values.append(sum(gauges))
        if usage := [value for names in SERVERS.values() for value in self._first_gauges(names.kv_usage)]:
            self.kv_means.append(sum(usage) / len(usage))
            self.kv_peaks.append(max(usage))

    def end(self) -> None:
        """Completes the sums. It must be called after the last sample."""
        self.end_round()
        if self.span is not None:
            self._note_gap(self._round[1] if self._round else self.span[0], self.span[1])

    @property
    def moved(self) -> dict[str, float]:
        """The increase of each counter, by its name, summed over all of its series."""
        sums: defaultdict[str, float] = defaultdict(float)
        for series, increase in self.increases.items():
            sums[series.name] += increase
        return sums

    def _begin_again(self, source: SampleSource) -> None:
        """Forgets the counters of a replica, because its next sample is the first one after the stack was booted again."""
        self._last = {series: value for series, value in self._last.items() if series.source != source}
        self._starts = {series: value for series, value in self._starts.items() if series.source != source}
        if source in self._failing:  # Its process died before it could be sampled for the last time.
            self.restarted.add(source)
        self.known.discard(source)

    def _note_gap(self, start_ns: int, end_ns: int) -> None:
        if self.span is not None:
            self.longest_gap_ns = max(self.longest_gap_ns, min(end_ns, self.span[1]) - max(start_ns, self.span[0]))

    def _is_within(self, at_ns: int) -> bool:
        return self.span is None or self.span[0] <= at_ns <= self.span[1]

    def _take(self, sample: Sample) -> None:
        for series in sample.unknown:
            self._now.pop(series, None)
        known = (self._last.keys() | self._now.keys()) - sample.unknown if sample.first else set()
        removed = sample.gone | {series for series in known if series.source == sample.source and series not in sample.values}
        fallen = self._is_restarted(sample)
        for series in removed:
            self._now.pop(series, None)
            if self._last.get(series):
                self._last[series], fallen = 0.0, True
        for series, value in sample.values.items():
            if series.name in GAUGES:
                self._now[series] = value
                continue
            if series.name in STARTED:
                self._starts[series] = value
                continue
            before = self._last.get(series, 0.0 if sample.source in self.known else value)
            fallen |= value < before
            self.increases[series] += value - before if value >= before else value
            self._last[series] = value
        self.resets += fallen
        if fallen:
            self.restarted.add(sample.source)

    def _is_restarted(self, sample: Sample) -> bool:
        """Returns whether the start of a process has changed. If so, all of its counters start at 0 again."""
        if all(self._starts.get(series, value) == value for series, value in sample.values.items() if series.name in STARTED):
            return False
        self._last |= {series: 0.0 for series in self._last if series.source == sample.source}
        return True

    def _gauges(self, names: Sequence[str]) -> list[float]:
        return [value for series, value in self._now.items() if series.name in names and series.source not in self._failing]

    def _first_gauges(self, names: Sequence[str]) -> list[float]:
        """Returns the current values of a metric that has several possible names, under the first name that has values."""
        return next((values for name in names if (values := self._gauges([name]))), [])


def tally(samples: Iterable[Sample | GpuSample], span: Span | None) -> SampleTally:
    """Returns the sums over all samples of a run. Loads count only within `span`; None stands for the whole run."""
    counts = SampleTally(span)
    for sample in samples:
        counts.add(sample)
    counts.end()
    return counts


def summary(counts: SampleTally) -> EngineStats:
    """Computes the statistics from the sums. Numbers that no server reported are None."""
    moved = counts.moved
    preemptions = [moved[names.preemptions] for names in SERVERS.values() if names.preemptions in moved]
    return EngineStats(
        rounds=counts.rounds,
        longest_gap_s=counts.longest_gap_ns / 1e9,
        resets=counts.resets,
        prefix_cache=prefix_cache(moved),
        kv_usage=Gauge(_mean(counts.kv_means), max(counts.kv_peaks, default=None)),
        running=Gauge(_mean(counts.running), max(counts.running, default=None)),
        waiting=Gauge(_mean(counts.waiting), max(counts.waiting, default=None)),
        preemptions=sum(preemptions) if preemptions else None,
        server=server(moved),
        gpus={gpu: _gpu(samples) for gpu, samples in counts.gpus.items()},
    )


def prefix_cache(moved: Mapping[str, float]) -> CacheHits:
    """Returns the hits and lookups of the prefix cache, from the increases of counters (metric -> increase).

    They come from the most reliable metric that a server has. They are None if nothing was looked up.
    """
    for kind in HIT_SOURCES:
        names = SERVERS[kind]
        queries = moved.get(names.queries, 0.0)
        if queries and names.hits in moved and (not names.hit_reports or moved.get(names.hit_reports)):
            return CacheHits(moved[names.hits] / queries, moved[names.hits], queries, names.hits)
    requests = moved.get(f"{GUESS}_count", 0.0)
    guess = moved[f"{GUESS}_sum"] / requests if requests else None
    return CacheHits(guess, None, None, GUESS if requests else None)


def server(moved: Mapping[str, float]) -> ServerCounts:
    """Returns the counts of the server that is nearest to the client, from the increases of counters (metric -> increase).

    A frontend is nearer than the engines behind it. Servers that counted no tokens are ignored.
    """
    for kind, names in SERVERS.items():
        if names.output_tokens in moved and (moved[names.output_tokens] or moved.get(names.prompt_tokens)):
            first_tokens = moved.get(f"{names.ttft}_count", 0.0)
            return ServerCounts(
                kind=kind,
                prompt_tokens=moved.get(names.prompt_tokens),
                output_tokens=moved[names.output_tokens],
                first_tokens=first_tokens,
                ttft_ms=moved[f"{names.ttft}_sum"] * 1e3 / first_tokens if first_tokens else None,
            )
    return ServerCounts()


def _gpu(samples: Sequence[GpuSample]) -> GpuUse:
    return GpuUse(
        looks=len(samples),
        used_mib_max=max((sample.used_mib for sample in samples), default=None),
        total_mib=samples[-1].total_mib if samples else None,
        sm_percent_mean=_mean([sample.sm_percent for sample in samples if sample.sm_percent is not None]),
        power_w_mean=_mean([sample.power_w for sample in samples if sample.power_w is not None]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
