"""How many LLM calls each engine of a stack has answered, from the counters of its metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pytest_agentbench.backends.telemetry.engine_stats import SampleTally
from pytest_agentbench.backends.telemetry.readings import Readings, read_now
from pytest_agentbench.backends.telemetry.samples import SampleSource, Series, Target

#: Engine -> number of calls. An engine is one replica of a service: (service, number of the replica from 0).
CallCounts = dict[SampleSource, int]


class Counter(NamedTuple):
    """A counter of requests: the name of the metric, and the values of labels that its series must have."""

    name: str
    labels: Mapping[str, Collection[str]] = {}

    def counts(self, series: Series) -> bool:
        """Returns whether a series belongs to this counter."""
        return series.name == self.name and all(dict(series.labels).get(label) in values for label, values in self.labels.items())


#: Kind of engine -> its counter of finished requests. If a server has several, the first one counts, so that an engine in a worker of
#: Dynamo counts itself. Requests that the engine refused are in none of them.
FINISHED: Mapping[str, Counter] = {
    "vllm": Counter("vllm:request_success_total"),
    "sglang": Counter("sglang:num_requests_total"),
    "dynamo": Counter("dynamo_component_requests_total", {"dynamo_endpoint": ("generate",)}),
}

#: The counter of HTTP requests that vLLM has in addition. It has series for refused requests, too, which routers repeat. A series
#: appears with its first request.
OVER_HTTP = Counter(
    "http_requests_total",
    {"method": ("POST",), "handler": ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")},
)

PREFILL = "prefill"  # part of the name of a service or a component that has only this stage

CALL_NAMES = frozenset(counter.name for counter in (*FINISHED.values(), OVER_HTTP))


@dataclass(frozen=True)
class EngineCalls:
    """The calls that one engine answered during a session."""

    service: str
    replica: int  # number of the replica, counted from 0
    kind: str  # `vllm`, `sglang` or `dynamo`, from the name of its counter
    calls: int  # answered calls, with refused ones if the engine counts these
    prefill: bool = False  # whether it only makes the KV cache of prompts, so that another engine answers the same call
    restarted: bool = False  # whether it was restarted; some of its calls before that may not be counted

    @property
    def name(self) -> str:
        """The name of the engine, such as `engine[0]`."""
        return f"{self.service}[{self.replica}]"

    @property
    def group(self) -> tuple[str, bool]:
        """Kind and stage of the engine. Engines of one group stand side by side, and each call is answered by one of them."""
        return self.kind, self.prefill


def calls_of_groups(engines: Iterable[EngineCalls]) -> dict[tuple[str, bool], int]:
    """Returns the calls that the engines of each group (kind and stage) answered together."""
    sums: defaultdict[tuple[str, bool], int] = defaultdict(int)
    for engine in engines:
        sums[engine.group] += engine.calls
    return sums


def calls_now(targets: Iterable[Target]) -> CallCounts:
    """Reads the metrics of these replicas of services, and returns how many calls each engine among them has answered so far.

    A replica that does not answer is left out, and so are services that are not engines, such as a router.
    """
    readings = read_now(targets, CALL_NAMES)
    return {source: calls for source, (_, calls) in _engines(readings).items()}


def calls_between(before: CallCounts, after: CallCounts) -> CallCounts:
    """Returns how many calls each engine has answered between two results of `calls_now`.

    The count of an engine that was restarted in between begins at 0. An engine that did not answer one of the two times is left out.
    """
    return {source: calls - before[source] if calls >= before[source] else calls for source, calls in after.items() if source in before}


def engine_calls(tally: SampleTally) -> tuple[EngineCalls, ...]:
    """Returns the calls of each engine between the first sample and the last, sorted by service and replica."""
    readings: Readings = {source: {} for source in tally.known}
    for series, increase in tally.increases.items():
        readings[series.source][series] = increase
    return tuple(
        EngineCalls(*source, kind, calls, _is_prefill(source, readings[source]), source in tally.restarted)
        for source, (kind, calls) in sorted(_engines(readings).items())
    )


def _engines(readings: Readings) -> dict[SampleSource, tuple[str, int]]:
    """Returns kind and calls of each engine.

    Some engines have no counter before their first call. So every replica of a service is an engine if one of them has a counter.
    """
    counted = {source: found for source, series in readings.items() if (found := _calls(series))}
    kinds = {service: kind for (service, _), (kind, _) in counted.items()}
    return {source: counted.get(source, (kinds[source[0]], 0)) for source in readings if source[0] in kinds}


def _is_prefill(source: SampleSource, series: Iterable[Series]) -> bool:
    """Returns whether an engine has only the prefill stage: its service is named so, or is Dynamo's component for it."""
    return any(PREFILL in name.lower() for name in (source[0], *(dict(each.labels).get("dynamo_component", "") for each in series)))


def _calls(series: Mapping[Series, float]) -> tuple[str, int] | None:
    """Returns kind and calls of one server, or None if it is not an engine."""
    for kind, counter in FINISHED.items():
        if finished := [value for each, value in series.items() if counter.counts(each)]:
            over_http = [value for each, value in series.items() if OVER_HTTP.counts(each)]
            return kind, round(sum(over_http or finished))
    return None
