"""The prefix cache of a run, and the comparison of its arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import CacheHits
from pytest_agentbench.metrics.performance import GoodputSummary
from pytest_agentbench.records import OPEN
from pytest_agentbench.stats.decisions import Decision
from pytest_agentbench.suites.arms import Arm


@dataclass(frozen=True)
class Cache:
    """How the [prefix cache](ab.md#the-state-of-the-prefix-cache) was made ready."""

    policy: str  # `cold`, `primed` or `carry`
    blocks: tuple[CacheBlock, ...] = ()  # of rollouts of the last session, in their order; none without arms under `carry`
    salted: Mapping[str, str] = field(default_factory=dict)  # arm (empty without) whose prompts were salted -> why there was no reset


@dataclass(frozen=True)
class ArmFacts:
    """What is known of the backends of a session that is over."""

    failure: str = ""  # why nothing could run any more
    failures: Mapping[str, str] = field(default_factory=dict)  # arm that is not there, or is gone -> why
    load_s: Mapping[str, float] = field(default_factory=dict)  # arm -> seconds that its start took
    in_sequence: bool = False  # one arm ran before the other


@dataclass(frozen=True, kw_only=True)
class ArmResult(Arm):
    """One arm, all suites together."""

    model: str | None  # as `backend.served_model`
    load_s: float | None  # seconds until its backend answered; null when it did not, and for agents
    failure: str  # why it is not there, or is gone; empty when all was well
    blocks: int  # of the last session
    rollouts: Mapping[str, int]  # counts by status
    calls: int
    failed_calls: int
    busy_s: float  # seconds in which any of its rollouts ran
    # `rollouts_per_hour` and all other metrics of a session in the [table](metrics.md#serving-metrics), over these seconds
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
    goodput: GoodputSummary | None  # over these seconds; null without `--agentbench-slo`
    prefix_cache: CacheHits  # by the server's counters, its blocks together


@dataclass(frozen=True, kw_only=True)
class MetricCompared(Decision):
    """A metric under two of the arms."""

    suite: str  # suite, or `suite-variant`
    metric: str  # a score, or `ttft.p50` and the like
    base_arm: str  # the arm that the other one is compared with
    new_arm: str
    base: float | None  # of `base_arm`; milliseconds, or a mean
    new: float | None  # of `new_arm`
    finding: str  # `better`, `worse`, `faster`, `slower`, `no difference shown` or `inconclusive`


@dataclass(frozen=True)
class ArmsCompared:
    """[Arms](ab.md) against each other, paired by scenario."""

    arms: tuple[ArmResult, ...]  # the first is what the others are compared with
    order: str  # `interleaved` or `in sequence`
    comparisons: tuple[MetricCompared, ...]
    warnings: tuple[str, ...]  # sentences on what was not equal
