"""The metrics of an engine under vLLM's names, and the clock that measures the tokens of an answer for them."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # seconds
ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # seconds
FINISHED_REASONS = ("stop", "length", "abort")

UNCOUNTED = ("/metrics", "/health", "/version", "/server_info")  # paths whose requests vLLM does not count


class Metrics:
    """The metrics of one engine, with the names of vLLM, in a separate registry. They have the label `model_name`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.cache_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.cache_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Seconds from the arrival of a request to its first token.", TTFT_BUCKETS
        )
        self.next_token = self._histogram("inter_token_latency_seconds", "Seconds from one token to the next.", ITL_BUCKETS)
        success = Counter("vllm:request_success", "Requests that ended.", ("model_name", "finished_reason"), registry=self._registry)
        self._finished = {reason: success.labels(model, reason) for reason in FINISHED_REASONS}
        labels = ("handler", "method", "status")
        self._over_http = Counter("http_requests", "HTTP requests, by path and class of status.", labels, registry=self._registry)

    def add_gauge(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read when the metrics are requested."""
        Gauge(f"vllm:{name}", documentation, ("model_name",), registry=self._registry).labels(self._model).set_function(read)

    def add_constant(self, name: str, documentation: str, **labels: str) -> None:
        """Adds a gauge with the constant value 1, whose labels have the information."""
        Gauge(f"vllm:{name}", documentation, sorted(labels), registry=self._registry).labels(**labels).set(1)

    def count_finished(self, finish_reason: str) -> None:
        """Counts a finished request. As in vLLM, an answer with tool calls counts as `stop`."""
        self._finished.get(finish_reason, self._finished["stop"]).inc()

    def count_request(self, path: str, method: str, status: int) -> None:
        """Counts an answered HTTP request. As in vLLM, this is the only counter that has requests that were refused."""
        if path not in UNCOUNTED:
            self._over_http.labels(path, method, f"{status // 100}xx").inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"vllm:{name}", documentation, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", documentation, ("model_name",), registry=self._registry, buckets=buckets).labels(self._model)


class TokenClock:
    """Measures the times at which the tokens of one request are sent."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics = metrics
        self._last = arrived
        self._is_first = True

    def tick(self, tokens: int) -> None:
        """Records that `tokens` are sent now. Tokens that are sent together have no time between them."""
        if not tokens:
            return
        now = time.monotonic()
        gaps = [now - self._last, *(0.0,) * (tokens - 1)]
        self._last = now
        if self._is_first:
            self._is_first = False
            self._metrics.first_token.observe(gaps.pop(0))
        for gap in gaps:
            self._metrics.next_token.observe(gap)
        self._metrics.generation_tokens.inc(tokens)
