"""Computes the errors of the tap's timestamps from the records of the truth server. All errors are in milliseconds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import TypeVar

from benchmarks.measurement import BenchmarkError
from benchmarks.truth import Served
from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.timings import LateTimestamps
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.quantiles import percentile

T = TypeVar("T")
C = TypeVar("C", bound="Costs")
NS_PER_MS = 1e6


@dataclass
class Errors:
    """All single errors of a run. An error is positive if the tap's timestamp is too late, or its duration too long."""

    ttft: list[float] = field(default_factory=list)
    chunk: list[float] = field(default_factory=list)  # the tap's stamp of an output chunk - when it was sent
    gap: list[float] = field(default_factory=list)  # ITL
    late: list[float] = field(default_factory=list)  # the server's own: sent - due
    send: list[float] = field(default_factory=list)  # what its send() took; no stamp can be told to be better than that
    clean: int = 0  # output chunks that share their stamp with no other
    kernel: int = 0  # calls stamped by the kernel
    tokens: int = 0


@dataclass(frozen=True)
class Costs:
    """The CPU time and latency that a relay (the tap or a minimal one) costs. None if not measured."""

    cpu: float | None = None  # milliseconds per 1,000 tokens
    added_p50: float | None = None  # milliseconds that a call through it takes longer


UNMEASURED = Costs()


@dataclass(frozen=True)
class Measured(Costs):
    """The figures of one run: percentiles of the absolute errors, and costs. None if not measured."""

    ttft_p50: float | None = None
    ttft_p99: float | None = None
    chunk_p50: float | None = None
    chunk_p99: float | None = None
    gap_p99: float | None = None
    unclean: float | None = None  # percent of output chunks that share their stamp with another
    startup: float | None = None  # milliseconds of CPU until the tap serves
    agent_p50: float | None = None  # TTFT error of the agent's own clock
    agent_p99: float | None = None
    late_p99: float | None = None
    send_p99: float | None = None
    kernel: float | None = None  # percent of calls stamped by the kernel


def model_key(call: LLMCall) -> str:
    """Returns the key of a call, which the load generator puts at the end of the model name."""
    return call.model.rpartition("key=")[2]


def joined(calls: Iterable[tuple[str, LLMCall]], requests: Iterable[Served]) -> list[tuple[LLMCall, Served]]:
    """Returns pairs of a call that the tap recorded and the request that the server recorded. Those with equal keys are paired in order.

    Raises BenchmarkError if one of them is missing, or if a request arrived outside of its call.
    """
    recorded = _by_key(calls, lambda call: call.sent_ns or call.received_ns)
    served = _by_key(((request.key, request) for request in requests), lambda request: request.arrived_ns)
    for key in recorded.keys() | served.keys():
        if len(recorded[key]) != len(served[key]):
            raise BenchmarkError(f"the tap recorded {len(recorded[key])} calls of {key!r}, the server {len(served[key])}")
    pairs = [(call, request) for key in sorted(recorded) for call, request in zip(recorded[key], served[key], strict=True)]
    for call, request in pairs:
        if not call.received_ns <= request.arrived_ns <= call.ended_ns:
            raise BenchmarkError(f"the request {request.key!r} arrived before its call began or after it ended")
    return pairs


def compare(pairs: Sequence[tuple[LLMCall, Served]]) -> Errors:
    """Returns the errors of the tap's timestamps. Raises BenchmarkError if a call failed or has other chunks than the server sent."""
    errors = Errors()
    for call, request in pairs:
        chunks = call.output
        sent = request.output
        ttft = timings.ttft_ns(call)
        if ttft is None or [chunk.kind for chunk in chunks] != [event.kind for event in sent]:
            raise BenchmarkError(f"call {request.key!r}: {len(chunks)} of {len(sent)} output chunks; error: {call.error or 'none'}")
        errors.ttft.append((ttft - (sent[0].sent_ns - request.arrived_ns)) / NS_PER_MS)
        off = [(chunk.at_ns - event.sent_ns) / NS_PER_MS for chunk, event in zip(chunks, sent, strict=True)]
        errors.chunk += off
        errors.gap += [later - earlier for earlier, later in pairwise(off)]
        errors.late += [(event.sent_ns - event.due_ns) / NS_PER_MS for event in sent]
        errors.send += [(event.after_ns - event.sent_ns) / NS_PER_MS for event in sent]
        errors.clean += LateTimestamps.of(call).clean
        errors.kernel += call.stamp == "kernel"
        errors.tokens += sum(event.tokens for event in sent)
    return errors


def agent_ttft(seen_ns: Mapping[str, tuple[int, int]], requests: Iterable[Served]) -> list[float]:
    """Returns the errors of TTFT as agents measure it themselves. `seen_ns` has (start of the call, first output) by key."""
    served = {request.key: request.output[0].sent_ns - request.arrived_ns for request in requests}
    return [(first - began - served[key]) / NS_PER_MS for key, (began, first) in seen_ns.items()]


def added(straight: Mapping[str, int], tapped: Mapping[str, int], requests: Iterable[Served]) -> list[float]:
    """Returns the latency that the tap adds to each call: its duration minus that of an equal call without the tap (its twin).

    The time that the server itself took is subtracted from both. Durations are nanoseconds by key. In `requests`, the keys of twins end
    in `-straight` and `-tapped`.
    """
    served = {request.key: request.events[-1].sent_ns - request.arrived_ns for request in requests}
    return [
        ((tapped[key] - served[f"{key}-tapped"]) - (straight[key] - served[f"{key}-straight"])) / NS_PER_MS
        for key in straight.keys() & tapped.keys()
    ]


def medians(kind: type[C], runs: Sequence[C]) -> C:
    """Returns the median of each figure over the runs in which it was measured."""
    values = {each.name: [value for run in runs if (value := getattr(run, each.name)) is not None] for each in fields(kind)}
    return kind(**{name: statistics.median(found) if found else None for name, found in values.items()})


def size(errors: Sequence[float], q: float) -> float | None:
    """Returns the q-th percentile of the absolute errors."""
    return percentile(map(abs, errors), q)


def measured(errors: Errors, costs: Costs, **others: float | None) -> Measured:
    """Returns the figures of a run, computed from its errors and costs. `others` are figures that are added unchanged."""
    return Measured(
        **asdict(costs),
        ttft_p50=size(errors.ttft, 50),
        ttft_p99=size(errors.ttft, 99),
        chunk_p50=size(errors.chunk, 50),
        chunk_p99=size(errors.chunk, 99),
        gap_p99=size(errors.gap, 99),
        unclean=100 * (1 - errors.clean / len(errors.chunk)),
        late_p99=percentile(errors.late, 99),
        send_p99=percentile(errors.send, 99),
        kernel=100 * errors.kernel / len(errors.ttft),
        **others,
    )


def _by_key(items: Iterable[tuple[str, T]], time_of: Callable[[T], int]) -> defaultdict[str, list[T]]:
    """Groups items by key, each group in the order of time."""
    found: defaultdict[str, list[T]] = defaultdict(list)
    for key, item in items:
        found[key].append(item)
    for each in found.values():
        each.sort(key=time_of)
    return found
