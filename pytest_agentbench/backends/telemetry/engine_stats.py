"""What samples say about a serving stack: cache hits, load, preemptions, and what it counted itself. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, SampleSource, Series
from pytest_agentbench.metrics.timeline import Span


class Names(NamedTuple):
    """What a kind of server calls its metrics. Where several names are given, a server has one of them."""

    hits: str = ""  # prompt tokens found in the prefix cache
    hit_reports: str = ""  # moves when hits are told at all; empty: they always are
    queries: str = ""  # prompt tokens looked up there
    kv_usage: tuple[str, ...] = ()  # share of the KV cache in use, 0 to 1
    running: str = ""  # requests
    waiting: str = ""
    preemptions: str = ""
    prompt_tokens: str = ""
    output_tokens: str = ""
    ttft: str = ""  # histogram, seconds


#: Nearest to the client first: the first one that counted tokens is compared with the tap.
SERVERS: Mapping[str, Names] = {
    "dynamo": Names(
        hits="dynamo_frontend_cached_tokens_sum",
        hit_reports="dynamo_frontend_cached_tokens_count",
        queries="dynamo_frontend_input_sequence_tokens_sum",
        prompt_tokens="dynamo_frontend_input_sequence_tokens_sum",
        output_tokens="dynamo_frontend_output_sequence_tokens_sum",  # ..._output_tokens_total lacks tokens of streamed tool calls
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

#: Engines know how many tokens they found; a frontend only of requests whose usage says it; a router guesses before it sends.
HIT_SOURCES = ("vllm", "sglang", "dynamo")
GUESS = "dynamo_component_router_kv_hit_rate"  # histogram: a share for each request

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
NAMES = GAUGES | COUNTERS


@dataclass(frozen=True)
class CacheHits:
    """Hits of the prefix cache by the server's counters, from one look to another."""

    hit_ratio: float | None  # hits / lookups, 0 to 1; null when nothing was looked up, or nobody says so
    hit_tokens: float | None
    queried_tokens: float | None
    source: str | None = None  # the metric that it is from


@dataclass(frozen=True)
class Gauge:
    """A number that was looked at now and then, over the rounds."""

    mean: float | None
    max: float | None


@dataclass(frozen=True)
class ServerCounts:
    """What the server nearest to the client counted."""

    kind: str | None = None  # `dynamo`, `vllm` or `sglang`: whose names its metrics have
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    first_tokens: float = 0.0  # requests with a first token
    ttft_ms: float | None = None  # their mean TTFT


@dataclass(frozen=True)
class GpuUse:
    """How busy a GPU was in the time of the calls; all but `looks` null without any."""

    looks: int
    used_mib_max: int | None  # MiB
    total_mib: int | None  # MiB
    sm_percent_mean: float | None
    power_w_mean: float | None  # watts


@dataclass(frozen=True)
class EngineStats:
    """What samples say of a serving stack."""

    rounds: int  # looks while calls were under way; what follows on load is over these
    longest_gap_s: float  # longest time without a look while calls were under way, in seconds
    resets: int  # looks that found counters to have fallen: something was started again
    prefix_cache: CacheHits  # from the first look to the last
    kv_usage: Gauge  # share of the KV cache in use, 0 to 1
    running: Gauge  # requests that ran
    waiting: Gauge  # requests that waited
    preemptions: float | None
    server: ServerCounts
    gpus: Mapping[str, GpuUse]  # empty where no GPU was leased or NVML is not there


@dataclass(frozen=True, kw_only=True)
class Looks:
    """The sampling of the services, as far as the samples do not tell it."""

    notes: tuple[str, ...]  # sentences: what could not be looked at or written
    looks: int  # rounds in which all services were looked at
    every_s: float  # seconds that should be between two looks
    cpu_s: float  # CPU seconds that looking took


@dataclass(frozen=True, kw_only=True)
class ServingSummary(Looks, EngineStats):
    """[What the server says of itself](metrics.md#what-the-server-says)."""

    disagreements: tuple[str, ...]  # sentences: where the server's counts differ from the tap's


@dataclass
class SampleTally:
    """Adds up samples in the order in which they were taken.

    A counter's first value is where it starts from; a series that appears later started from 0, as does one that fell or was gone,
    because its process was started again. Gauges are looked at when a round is over, while `span` lasts; one that is no number has no value
    until it is one again.
    """

    span: Span | None = None  # when calls were with the backend; None: always
    moved: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # counter -> by how much, all series together
    resets: int = 0  # looks that found counters to have fallen
    running: list[float] = field(default_factory=list)  # a value for each round
    waiting: list[float] = field(default_factory=list)
    kv_means: list[float] = field(default_factory=list)
    kv_peaks: list[float] = field(default_factory=list)
    rounds: int = 0  # that gauges were looked at
    longest_gap_ns: int = 0  # between two looks, as far as `span` reaches; what comes before the first one and after the last one counts
    gpus: defaultdict[str, list[GpuSample]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[Series, float] = field(default_factory=dict)  # counters
    _now: dict[Series, float] = field(default_factory=dict)  # gauges
    _known: set[SampleSource] = field(default_factory=set)
    _failing: set[SampleSource] = field(default_factory=set)
    _round: tuple[int, int] | None = None  # that is being added up, and when its latest sample was taken

    def add(self, sample: Sample | GpuSample) -> None:
        if self._round and self._round[0] != sample.round:
            self.end_round()
            self._note_gap(self._round[1], sample.at_ns)
        elif self._round is None and self.span is not None:
            self._note_gap(self.span[0], sample.at_ns)
        self._round = sample.round, sample.at_ns
        match sample:
            case GpuSample():
                looks = self.gpus[sample.gpu]  # of a GPU that was never looked at in time it is known that it is there
                if self._is_within(sample.at_ns):
                    looks.append(sample)
            case Sample(failed="", source=source):
                self._failing.discard(source)
                self._take(sample)
                self._known.add(source)
            case Sample(source=source):
                self._failing.add(source)

    def end_round(self) -> None:
        """Looks at the gauges."""
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
        """To be called after the last sample."""
        self.end_round()
        if self.span is not None:
            self._note_gap(self._round[1] if self._round else self.span[0], self.span[1])

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
        fallen = False
        for series in removed:
            self._now.pop(series, None)
            if self._last.get(series):
                self._last[series], fallen = 0.0, True
        for series, value in sample.values.items():
            if series.name in GAUGES:
                self._now[series] = value
                continue
            before = self._last.get(series, 0.0 if sample.source in self._known else value)
            fallen |= value < before
            self.moved[series.name] += value - before if value >= before else value
            self._last[series] = value
        self.resets += fallen

    def _gauges(self, names: Sequence[str]) -> list[float]:
        return [value for series, value in self._now.items() if series.name in names and series.source not in self._failing]

    def _first_gauges(self, names: Sequence[str]) -> list[float]:
        """Of a metric with several names, the values under the first one that is there."""
        return next((values for name in names if (values := self._gauges([name]))), [])


def tally(samples: Iterable[Sample | GpuSample], span: Span | None) -> SampleTally:
    """All samples of a run."""
    counts = SampleTally(span)
    for sample in samples:
        counts.add(sample)
    counts.end()
    return counts


def summary(counts: SampleTally) -> EngineStats:
    """Numbers that were not told are None."""
    preemptions = [counts.moved[names.preemptions] for names in SERVERS.values() if names.preemptions in counts.moved]
    return EngineStats(
        rounds=counts.rounds,
        longest_gap_s=counts.longest_gap_ns / 1e9,
        resets=counts.resets,
        prefix_cache=prefix_cache(counts.moved),
        kv_usage=Gauge(_mean(counts.kv_means), max(counts.kv_peaks, default=None)),
        running=Gauge(_mean(counts.running), max(counts.running, default=None)),
        waiting=Gauge(_mean(counts.waiting), max(counts.waiting, default=None)),
        preemptions=sum(preemptions) if preemptions else None,
        server=server(counts.moved),
        gpus={gpu: _gpu(samples) for gpu, samples in counts.gpus.items()},
    )


def prefix_cache(moved: Mapping[str, float]) -> CacheHits:
    """Hits / queries, both in tokens, by the best source that there is; None where nothing was looked up."""
    for kind in HIT_SOURCES:
        names = SERVERS[kind]
        queries = moved.get(names.queries, 0.0)
        if queries and names.hits in moved and (not names.hit_reports or moved.get(names.hit_reports)):
            return CacheHits(moved[names.hits] / queries, moved[names.hits], queries, names.hits)
    requests = moved.get(f"{GUESS}_count", 0.0)
    guess = moved[f"{GUESS}_sum"] / requests if requests else None
    return CacheHits(guess, None, None, GUESS if requests else None)


def server(moved: Mapping[str, float]) -> ServerCounts:
    """What the server nearest to the client counted, of those that counted anything."""
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
