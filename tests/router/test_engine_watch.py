"""What the router knows of its engines from their metrics."""

from __future__ import annotations

from pytest_agentbench.router.engine_watch import WatchedEngine
from pytest_agentbench.router.features import WorkerLoad

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
