"""What the router knows of its engines from their metrics."""

from __future__ import annotations

import math
from contextlib import ExitStack

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.router.constants import PRESETS
from pytest_agentbench.router.engine_watch import EngineWatch, WatchedEngine
from pytest_agentbench.router.features import CallHints, WorkerLoad
from pytest_agentbench.router.thompson import ThompsonRouter

VLLM = """# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="100"} 1.0
"""
SGLANG = 'sglang:num_queue_reqs{model_name="m"} 2.0\nsglang:token_usage{model_name="m"} 0.5\n'


def test_pages() -> None:
    """Load and size of the cache are read from pages of vLLM and of SGLang."""
    engine = WatchedEngine("http://127.0.0.1:7001")
    engine.take_metrics(VLLM)
    assert WorkerLoad(0.25, 3.0) == engine.load([], 60)
    assert 100 == engine.prompts.size
    engine.take_metrics(SGLANG)

    assert WorkerLoad(0.5, 2.0) == engine.load([], 60)
    assert "127.0.0.1:7001" == engine.id


def test_missing_values() -> None:
    """Values that a page does not have, that are no numbers, or that are too old, are missing, and not 0."""
    engine = WatchedEngine("http://127.0.0.1:7001")

    assert WorkerLoad() == engine.load([], 60)
    engine.take_metrics("vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc ?\n")
    assert WorkerLoad(None, 2.0) == engine.load([], 60)
    assert WorkerLoad() == engine.load([], -1)


def test_death() -> None:
    """A dead engine has neither metrics nor prompts in its cache."""
    engine = WatchedEngine("http://127.0.0.1:7001")
    engine.take_metrics(VLLM)
    engine.prompts.add([1, 2])
    engine.mark_dead()

    assert WorkerLoad() == engine.load([1, 2], 60)
    assert not engine.is_alive


async def test_leaving_engines() -> None:
    """An engine that leaves gets no more calls, and is there until its last call has ended. One that joins begins when it answers."""
    watch = EngineWatch(["http://127.0.0.1:7001", "http://127.0.0.1:7002"], 1)
    first = watch.all["127.0.0.1:7001"]
    with watch.calling(first):
        assert first is await watch.leave(first.id)
        assert ["127.0.0.1:7002"] == [*watch.loads([])]
        assert [first.id, "127.0.0.1:7002"] == [*watch.all]
    assert ["127.0.0.1:7002"] == [*watch.all]
    assert None is await watch.leave(first.id)
    again = watch.join(first.url)

    assert again is not None
    assert None is watch.join(first.url)
    assert ["127.0.0.1:7002"] == [*watch.alive]
    assert (True, False) == (watch.is_current(again), watch.is_current(first))


async def test_an_engine_comes_back_while_it_leaves() -> None:
    """An engine that joins again before its last call has ended begins anew. The end of that call changes nothing."""
    watch = EngineWatch(["http://127.0.0.1:7001"], 1)
    first = watch.all["127.0.0.1:7001"]
    with watch.calling(first):
        await watch.leave(first.id)
        again = watch.join(first.url)

    assert {first.id: again} == watch.all
    assert again is not None and 0 == again.calls


ENGINES = [f"http://127.0.0.1:{port}" for port in range(7001, 7006)]
changes = st.tuples(st.sampled_from(["join", "leave", "die", "answer", "call", "call", "call", "end"]), st.integers(0, 4))


@settings(max_examples=80, deadline=None)
@given(st.lists(changes, max_size=60), st.sampled_from([*PRESETS]))
async def test_any_changes(events: list[tuple[str, int]], preset: str) -> None:
    """Engines join, leave, die and answer again: calls go to living ones only, scores are finite, and no engine that has left is kept."""
    watch, router = EngineWatch(ENGINES[:2], 1), ThompsonRouter(PRESETS[preset], 0, lambda: 0.0)
    calls: list[tuple[int, ExitStack]] = []
    for number, (change, place) in enumerate(events):
        id = ENGINES[place].removeprefix("http://")
        if change == "join":
            watch.join(ENGINES[place])
        elif change == "leave" and await watch.leave(id):
            router.forget(id)
        elif change == "die" and id in watch.all:
            watch.all[id].mark_dead()
            router.forget(id)
        elif change == "answer" and id in watch.all:
            watch.all[id].is_alive = True
        elif change == "end" and calls:
            decision, call = calls.pop(place % len(calls))
            call.close()
            router.feedback(decision, "answered", 100.0, 10)
        elif change == "call":
            living = {key for key, engine in watch.all.items() if engine.is_alive and not engine.is_leaving}
            routed = router.choose(CallHints(f"s{number % 3}", 4), watch.loads([number]))
            assert (routed is None) == (not living)
            if routed is not None:
                assert routed.worker in living
                assert all(math.isfinite(score) for score in routed.scores.values())
                calls.append((routed.decision, stack := ExitStack()))
                stack.enter_context(watch.calling(watch.all[str(routed.worker)]))
            assert living == {*router.learners}
    for _, call in calls:
        call.close()

    assert not any(engine.is_leaving for engine in watch.all.values())
    assert {0} >= {engine.calls for engine in watch.all.values()}
