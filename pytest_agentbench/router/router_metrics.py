"""The metrics of the router, with the names of the NeMo Agent Toolkit's router."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pytest_agentbench.router.decision_log import LoggedDecision
from pytest_agentbench.router.features import CallHints
from pytest_agentbench.router.thompson import Routed, ThompsonRouter

LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds
REUSE_BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100)  # calls
TOKEN_BUCKETS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

WORKER = ("worker_id",)


class RouterMetrics:
    """The metrics of one router, in a registry of their own."""

    def __init__(self, router: ThompsonRouter) -> None:
        self._router, self._counted_timeouts = router, 0
        self._registry = registry = CollectorRegistry()
        self._decisions = Counter("thompson_router_decisions", "Decisions by worker.", WORKER, registry=registry)
        self._overlap = Gauge("thompson_router_kv_overlap", "Expected cached share of the last prompt.", WORKER, registry=registry)
        self._latency = Histogram(
            "thompson_router_feedback_latency_seconds", "Latency of calls.", WORKER, buckets=LATENCY_BUCKETS, registry=registry
        )
        self._reward = Gauge("thompson_router_reward", "Last reward.", WORKER, registry=registry)
        self._alpha = Gauge("thompson_router_beta_alpha", "Alpha of the Beta distribution.", WORKER, registry=registry)
        self._beta = Gauge("thompson_router_beta_beta", "Beta of the Beta distribution.", WORKER, registry=registry)
        self._pending = Gauge("thompson_router_pending_decisions", "Calls without feedback.", registry=registry)
        self._timeouts = Counter("thompson_router_timeout_penalties", "Calls that timed out.", registry=registry)
        self._sticky = Counter("thompson_router_sticky_decisions", "Calls that stayed at their session's worker.", registry=registry)
        self._switch = Counter("thompson_router_switch_decisions", "Calls that left their session's worker.", registry=registry)
        self._prefixes = Gauge("thompson_router_prefix_state_size", "Remembered sessions.", registry=registry)
        self._reuse = Histogram("thompson_router_reuse_budget", "Further calls of sessions.", buckets=REUSE_BUCKETS, registry=registry)
        self._tokens = Histogram("thompson_router_tokens_per_request", "Prompt tokens.", buckets=TOKEN_BUCKETS, registry=registry)

    def count_decision(self, hints: CallHints, routed: Routed) -> None:
        """Counts a decision."""
        worker = str(routed.worker)
        self._decisions.labels(worker).inc()
        self._overlap.labels(worker).set(routed.overlap)
        self._reuse.observe(hints.reuse)
        self._tokens.observe(hints.tokens)
        if routed.previous is not None:
            (self._sticky if routed.previous == routed.worker else self._switch).inc()

    def count_end(self, ended: LoggedDecision) -> None:
        """Counts the end of a call."""
        self._latency.labels(ended.worker).observe(ended.latency)
        if ended.reward is not None:
            self._reward.labels(ended.worker).set(ended.reward)

    def text(self) -> bytes:
        """Returns the page of metrics."""
        for worker, learner in self._router.learners.items():
            self._alpha.labels(str(worker)).set(learner.alpha)
            self._beta.labels(str(worker)).set(learner.beta)
        self._pending.set(self._router.pending)
        self._prefixes.set(len(self._router.prefixes))
        self._timeouts.inc(self._router.timeouts - self._counted_timeouts)
        self._counted_timeouts = self._router.timeouts
        return generate_latest(self._registry)
