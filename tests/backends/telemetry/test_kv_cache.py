"""The use of KV caches: events and calls in, counts of blocks and joined calls out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.backends.telemetry.kv_cache import (
    WORKER_METRIC,
    CachedCalls,
    EngineCache,
    EventJoin,
    KvCacheUse,
    cache_engine,
    engines_by_name,
    kv_cache_uses,
)
from pytest_agentbench.backends.telemetry.kv_events import KvEvent
from pytest_agentbench.backends.telemetry.samples import Series
from pytest_agentbench.records import Attempt, LLMCall, Rollout

WORKER = ("worker", 0)
SERIES = [Series(WORKER, WORKER_METRIC.name, (("dynamo_endpoint", "generate"), ("worker_id", "ff")))]


def call(sent: int, ended: int, prompt: int = 64, cached: int | None = 0, worker: Any = 255, **keys: Any) -> LLMCall:
    """A call that was answered by a worker of Dynamo with this number."""
    server = {"worker_id": {"decode_worker_id": worker, "prefill_worker_id": worker} if isinstance(worker, int) else worker}
    return LLMCall(0, sent, ended, prompt_tokens=prompt, cached_tokens=cached, server=server, **keys)


def rollout(*calls: LLMCall, scenario: str = "a", **keys: Any) -> Rollout:
    return Rollout("shop", scenario, "default", 1, status="ok", calls=calls, **keys)


def stored(at: int, *blocks: int, parent: int | None = None, size: int = 16) -> KvEvent:
    return KvEvent(0.0, at, WORKER, "stored", blocks, parent, size)


def removed(at: int, *blocks: int) -> KvEvent:
    return KvEvent(0.0, at, WORKER, "removed", blocks)


def calls_of(*rollouts: Rollout) -> CachedCalls:
    calls = CachedCalls()
    for each in rollouts:
        calls.add(each)
    return calls


def scenarios(events: list[KvEvent], *rollouts: Rollout) -> list[tuple[str, int] | None]:
    """Scenario and number of the call of each event, or None."""
    join = EventJoin(calls_of(*rollouts), SERIES)
    return [(found.key.scenario, found.number) if (found := join.add(event)) else None for event in events]


def test_counts_of_blocks() -> None:
    """Blocks are counted, those that were stored again after a removal too. The peak is of blocks that are there at the same time."""
    events = [
        stored(1, 1, 2, 3),
        removed(2, 3),
        stored(3, 4),
        KvEvent(0.0, 4, WORKER, "cleared"),
        stored(5, 3, 4, 5),
        KvEvent(0.0, 6, ("worker", 1), "lost", batches=3),
        KvEvent(0.0, 95, WORKER, "stored", (6, 7), None, 16, medium="CPU"),
    ]

    assert (
        KvCacheUse("worker", 0, 16, 7, 2, 1, 1, 3, 0, calls=1, prompt_tokens=64, hit_tokens=32, joined=0),
        KvCacheUse("worker", 1, None, 0, 0, 0, 0, 0, 3, calls=0, prompt_tokens=0, hit_tokens=0, joined=0),
    ) == (uses := kv_cache_uses(events, calls_of(rollout(call(90, 99, cached=32))), SERIES))
    assert [("worker[0]", 2), ("worker[1]", None)] == [(use.name, use.hit) for use in uses]


def test_a_single_call_is_joined() -> None:
    """An event belongs to the only call that was in progress at its engine, whatever the event is. Outside of calls it belongs to none."""
    events = [stored(5, 1), stored(10, 2), removed(15, 1), stored(20, 3), stored(21, 4), stored(35, 5)]
    other = rollout(call(0, 100, worker=254), scenario="b")

    assert [None, ("a", 1), ("a", 1), ("a", 1), None, ("a", 2)] == scenarios(events, rollout(call(10, 20), call(30, 40)), other)


def test_calls_at_the_same_time() -> None:
    """Of several calls, the one whose prompt ends with the stored blocks is recognised, and later by its own last block."""
    long, short = rollout(call(0, 100, prompt=70), scenario="long"), rollout(call(0, 100, prompt=40), scenario="short")
    events = [
        stored(10, 1),  # the beginning of both
        stored(11, 2, 3, 4, parent=1),  # 4 blocks: 64 of 70 tokens
        stored(12, 22, parent=1),  # 2 blocks: 32 of 40 tokens
        stored(13, 5, parent=4),
        stored(14, 23, parent=22),
        stored(15, 9, parent=77),  # after a block that nobody has seen
        removed(16, 1),
    ]
    joined = [None, ("long", 1), ("short", 1), ("long", 1), ("short", 1), None, None]

    assert joined == scenarios(events, long, short)
    assert [None] * 2 == scenarios(events[1:3], long, rollout(call(0, 100, prompt=70), scenario="twin"))
    (use,) = kv_cache_uses(events, calls_of(long, short), SERIES)
    assert (8, 6) == (use.stored, use.joined)


def test_calls_that_count() -> None:
    """Only answered calls to the backend of the last session count that name their engine and report cached tokens. Judges' do, too."""
    failed, elsewhere = call(1, 2, error_kind="cut"), call(1, 2, endpoint="http://other")
    earlier = Attempt(1, "infra_error", session=1, calls=(call(1, 2),))
    calls = calls_of(
        rollout(
            *(call(1, 2), failed, elsewhere, call(3, 4, cached=None), call(3, 4, worker=None)),
            other_calls=(call(5, 6, role="judge"),),
            earlier_attempts=(earlier,),
            session=2,
            attempt=2,
        )
    )

    assert [(2, 1), (2, 0)] == [(each.attempt, each.number) for each in calls.calls]


def test_names_of_engines() -> None:
    """A worker of Dynamo is found by its number, and the prefill worker has the cache. Other engines are named SERVICE-REPLICA."""
    other_endpoint = Series(("worker", 1), WORKER_METRIC.name, (("dynamo_endpoint", "clear"), ("worker_id", "fe")))
    strange = Series(("worker", 2), WORKER_METRIC.name, (("dynamo_endpoint", "generate"), ("worker_id", "x")))
    split = LLMCall(0, 0, 1, server={"worker_id": {"decode_worker_id": 3, "prefill_worker_id": 255}})
    named = calls_of(rollout(call(1, 2), call(3, 4, worker="engine-2"), call(5, 6, worker="somewhere"), call(7, 8, worker=1)))

    assert {"255": WORKER} == (engines := engines_by_name([*SERIES, other_endpoint, strange]))
    assert ("255", None) == (cache_engine(split), cache_engine(LLMCall(0, 0, 1)))
    assert {WORKER: [1], ("engine", 2): [3]} == {source: [each.sent_ns for each in found] for source, found in named.at(engines).items()}


BLOCKS = st.lists(st.integers(0, 9), max_size=5, unique=True).map(tuple)
EVENTS = st.builds(
    KvEvent, st.just(0.0), st.integers(0, 50), st.just(WORKER), st.sampled_from(["stored", "removed", "cleared"]), BLOCKS, st.integers(0, 9)
)


@given(st.lists(EVENTS, max_size=30))
def test_a_cache_holds_what_was_stored_last(events: list[KvEvent]) -> None:
    """After any events, the cache holds the blocks whose last event stored them. The peak is never exceeded."""
    cache, held = EngineCache(), set[int | str]()
    for event in events:
        cache.add(event)
        held = held | {*event.blocks} if event.kind == "stored" else held - {*event.blocks} if event.kind == "removed" else set()
        assert held == cache.depths.keys()
        assert len(held) <= cache.counts["peak"]

    assert cache.counts["stored_again"] <= cache.counts["stored"] == sum(len(each.blocks) for each in events if each.kind == "stored")
