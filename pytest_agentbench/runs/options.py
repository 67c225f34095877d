"""The options of a session as its run keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_agentbench.suites.arms import CARRY, Arm


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options in force. Where another tool ran the rollouts, only backend and concurrency are known, and nothing else was asked for."""

    backend: str  # as asked for
    ab: tuple[Arm, ...] = ()  # the two [arms](ab.md), or none
    cache: str = CARRY  # `cold`, `primed` or `carry`
    keep_backend: float | None = None  # seconds that a stack stays; null: it ends with the session
    gpu_wait: float = 0.0  # seconds that were allowed for waiting for GPUs
    concurrency: int | None  # rollouts in flight at most; null where another tool does not say
    workers: int | None = None  # xdist workers that were [asked for](running.md#workers)
    limit: int | None = None  # scenarios per suite
    trials: int | None = None  # null: as the suite says; 1 with rounds, for tests read the first one
    rounds: int | None = None  # of `--agentbench-trials=auto`: rounds of trials, at most
    variants: tuple[str, ...] = ()
    agent: str | None = None  # of `--agentbench-agent`; null: the suites' own
    changes: Mapping[str, Any] = field(default_factory=dict)  # of `--agentbench-set`: path -> value
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of `--agentbench-threshold`: name -> value
    slo: Mapping[str, float] = field(default_factory=dict)  # of `--agentbench-slo`: objective -> milliseconds
    gate: tuple[str, ...] = ()  # of `--agentbench-gate`
    baseline: str | None = None  # as asked for
    inconclusive: str = "pass"  # `pass` or `fail`
    verdict: str = "gate"  # `gate` or `tests`
    time_limit: float | None = None  # seconds
    # seconds for `connect`, `first_token`, `idle`, `call` and `rollout`; null is no limit, and for `rollout` what `suite.yaml` says
    budgets: Mapping[str, float | None] = field(default_factory=dict)
    taps: int = 1  # processes that relayed
    retries: int = 0
    ci: str = "off"  # `auto`, `github`, `gitlab` or `off`
    resume: str | None = None  # the run that was to be gone on with
    resume_rerun: tuple[str, ...] = ()  # statuses of rollouts that run again
    reports: str = ""  # last part of the reports directory's name
    inline: bool = False
