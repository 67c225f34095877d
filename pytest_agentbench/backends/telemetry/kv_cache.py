"""The use of engines' KV caches during a run, from their events: blocks stored, removed and hit, and the calls that they belong to."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.backends.telemetry.engine_calls import FINISHED
from pytest_agentbench.backends.telemetry.kv_events import BlockHash, KvEvent
from pytest_agentbench.backends.telemetry.samples import SampleSource, Series
from pytest_agentbench.records import LLMCall, Rollout, RolloutKey

#: A metric of Dynamo's workers. Its label `worker_id` is the worker's number in hexadecimal digits, which answers have in decimal ones.
WORKER_METRIC = FINISHED["dynamo"]
DEVICE = ("", "GPU")  # where the cache is that engines compute with; others, such as `CPU`, keep copies of its blocks
HEXADECIMAL = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True)
class KvCacheUse:
    """The [KV cache events](metrics.md#kv-cache-events) of one engine in the last session. Blocks are parts of the KV cache."""

    service: str  # with arms that have a stack each, ARM.SERVICE
    replica: int  # counted from 0
    block_size: int | None  # tokens in a block; null if no block was stored
    stored: int  # blocks that the engine computed and stored
    stored_again: int  # blocks among `stored` that it had stored before, and removed
    removed: int  # blocks that it removed
    cleared: int  # times that it emptied its whole cache
    peak: int  # greatest number of blocks that it held at the same time, of those that it stored in this session
    lost: int  # messages with events that have not arrived; the counts are too low if there are any
    calls: int  # answered calls that name this engine, and report cached tokens
    prompt_tokens: int  # prompt tokens of these calls
    hit_tokens: int  # prompt tokens of these calls that the engine found in its cache
    joined: int  # blocks among `stored` that are known to belong to one of these calls

    @property
    def name(self) -> str:
        """The name of the engine, such as `worker[0]`."""
        return f"{self.service}[{self.replica}]"

    @property
    def hit(self) -> int | None:
        """The blocks that the calls found in the cache. None if the block size is unknown, or if no call is known."""
        return self.hit_tokens // self.block_size if self.block_size and self.calls else None


@dataclass(frozen=True, slots=True)
class CachedCall:
    """An answered call whose answer names its engine and the tokens that were cached."""

    engine: str  # as named in the answer
    key: RolloutKey
    attempt: int  # counted from 1
    number: int  # number among the measured calls of its attempt, counted from 1; 0 for other calls
    sent_ns: int
    ended_ns: int
    prompt_tokens: int
    cached_tokens: int


@dataclass
class CachedCalls:
    """The calls of rollouts whose answers name their engine and the tokens that were cached."""

    calls: list[CachedCall] = field(default_factory=list)

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of the attempts at a rollout in its last session."""
        for attempt in rollout.attempts:
            if attempt.session == rollout.session:
                for number, call in enumerate(attempt.calls, 1):
                    self._add(call, rollout.key, attempt.attempt, number)
                for call in attempt.other_calls:
                    self._add(call, rollout.key, attempt.attempt, 0)

    def _add(self, call: LLMCall, key: RolloutKey, attempt: int, number: int) -> None:
        engine = cache_engine(call)
        if engine is None or call.sent_ns is None or call.error_kind or call.endpoint:
            return
        if call.prompt_tokens is not None and call.cached_tokens is not None:
            times = call.sent_ns, call.ended_ns
            self.calls.append(CachedCall(engine, key, attempt, number, *times, call.prompt_tokens, call.cached_tokens))

    def at(self, engines: Mapping[str, SampleSource]) -> dict[SampleSource, list[CachedCall]]:
        """Returns engine -> its calls in the order in which they were sent. `engines` is name of an engine in answers -> engine.

        An engine with another name is the replica of a service if its name is SERVICE-REPLICA, as in the shipped stacks.
        """
        calls: defaultdict[SampleSource, list[CachedCall]] = defaultdict(list)
        for call in sorted(self.calls, key=lambda each: each.sent_ns):
            service, _, replica = call.engine.rpartition("-")
            if call.engine in engines:
                calls[engines[call.engine]].append(call)
            elif service and replica.isdecimal():
                calls[service, int(replica)].append(call)
        return dict(calls)


def cache_engine(call: LLMCall) -> str | None:
    """Returns the name of the engine whose cache the prompt of a call was looked up in: with Dynamo, the worker of the prefill stage."""
    worker = (call.server or {}).get("worker_id")
    prefill = worker.get("prefill_worker_id") if isinstance(worker, dict) else None
    return call.engine if prefill is None else str(prefill)


def engines_by_name(series: Iterable[Series]) -> dict[str, SampleSource]:
    """Returns name of a worker of Dynamo in answers -> engine. `series` are those of WORKER_METRIC on the pages of the workers."""
    workers = ((each, dict(each.labels).get("worker_id", "")) for each in series if WORKER_METRIC.counts(each))
    return {str(int(worker, 16)): each.source for each, worker in workers if HEXADECIMAL.fullmatch(worker)}


@dataclass
class EngineCache:
    """The cache of one engine on its device, as its events tell it. Events must be added in their order."""

    block_size: int | None = None
    counts: Counter[str] = field(default_factory=Counter)  # fields of KvCacheUse that are counts of blocks or events
    depths: dict[BlockHash, int] = field(default_factory=dict)  # block in the cache -> its number in its prompt, from 1; 0 if unknown
    _removed: set[BlockHash] = field(default_factory=set)  # blocks that were in the cache

    def add(self, event: KvEvent) -> None:
        """Adds an event. Events about copies of blocks elsewhere, such as in the memory of the host, are ignored."""
        if event.medium not in DEVICE:
            return
        self.counts[event.kind] += len(event.blocks) if event.kind in ("stored", "removed") else max(1, event.batches)
        if event.kind == "stored":
            self.block_size = self.block_size or event.block_size
            self.counts["stored_again"] += sum(block in self._removed for block in event.blocks)
            before = 0 if event.parent is None else self.depths.get(event.parent, -1)
            for number, block in enumerate(event.blocks, 1):
                self.depths[block] = before + number if before >= 0 else 0
            self.counts["peak"] = max(self.counts["peak"], len(self.depths))
        gone = event.blocks if event.kind == "removed" else tuple(self.depths) if event.kind == "cleared" else ()
        for block in gone:
            self.depths.pop(block, None)
        self._removed.update(gone)


class EngineJoin:
    """Finds the call that an event of one engine belongs to, among the calls that were in progress at the engine then.

    If several were, a call is recognised by one of these, and the event belongs to none if that is ambiguous:

    - The first stored block follows the last block that was stored for it.
    - The stored blocks end where the complete blocks of its prompt end.
    """

    def __init__(self, calls: Sequence[CachedCall]) -> None:
        """`calls` are those of the engine, in the order in which they were sent."""
        self.calls, self.cache = calls, EngineCache()
        self.joined = 0  # stored blocks whose call is known
        self._sent = [call.sent_ns for call in calls]
        self._longest = max((call.ended_ns - call.sent_ns for call in calls), default=0)
        self._last: dict[CachedCall, BlockHash] = {}  # last block that was stored for a call

    def add(self, event: KvEvent) -> CachedCall | None:
        """Adds an event to the cache, and returns its call, or None."""
        self.cache.add(event)
        if event.medium not in DEVICE:
            return None
        first, end = bisect_left(self._sent, event.at_ns - self._longest), bisect_right(self._sent, event.at_ns)
        running = [call for call in self.calls[first:end] if call.ended_ns >= event.at_ns]
        if len(running) > 1:
            running = self._recognised(running, event)
        if len(running) != 1:
            return None
        if event.kind == "stored" and event.blocks:
            self._last[running[0]] = event.blocks[-1]
            self.joined += len(event.blocks)
        return running[0]

    def _recognised(self, running: list[CachedCall], event: KvEvent) -> list[CachedCall]:
        if event.kind != "stored" or not event.blocks:
            return []
        if by_parent := [call for call in running if event.parent is not None and self._last.get(call) == event.parent]:
            return by_parent
        depth, size = self.cache.depths.get(event.blocks[-1], 0), self.cache.block_size or 1
        return [call for call in running if depth and depth == call.prompt_tokens // size]


class EventJoin:
    """Finds the calls that the events of all engines belong to. Events must be added in the order of their arrival."""

    def __init__(self, calls: CachedCalls, series: Iterable[Series]) -> None:
        """`series` are those of WORKER_METRIC, which name the engines."""
        self._calls = calls.at(engines_by_name(series))
        self.engines: dict[SampleSource, EngineJoin] = {}  # engines that have published an event

    def add(self, event: KvEvent) -> CachedCall | None:
        """Adds an event, and returns its call, or None if that is not known."""
        if event.source not in self.engines:
            self.engines[event.source] = EngineJoin(self._calls.get(event.source, ()))
        return self.engines[event.source].add(event)


def kv_cache_uses(events: Iterable[KvEvent], calls: CachedCalls, series: Iterable[Series]) -> tuple[KvCacheUse, ...]:
    """Returns the use of the caches of all engines that have published events, sorted by service and replica.

    `series` are those of WORKER_METRIC, which name the engines.
    """
    join = EventJoin(calls, series)
    for event in events:
        join.add(event)
    return tuple(_use(source, join.engines[source]) for source in sorted(join.engines))


def _use(source: SampleSource, engine: EngineJoin) -> KvCacheUse:
    counts = engine.cache.counts
    return KvCacheUse(
        *source,
        block_size=engine.cache.block_size,
        stored=counts["stored"],
        stored_again=counts["stored_again"],
        removed=counts["removed"],
        cleared=counts["cleared"],
        peak=counts["peak"],
        lost=counts["lost"],
        calls=len(engine.calls),
        prompt_tokens=sum(call.prompt_tokens for call in engine.calls),
        hit_tokens=sum(call.cached_tokens for call in engine.calls),
        joined=engine.joined,
    )
