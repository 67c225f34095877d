"""Valid runs that tests make from the values that matter to them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.metrics.stopwatch import CpuShares, Stopwatch, stopwatch_of
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.builder import RunReader, build_run, plan_suite
from pytest_agentbench.runs.identity import PARTS
from pytest_agentbench.runs.journal import FILE, record_line
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.provenance import (
    BackendIdentity,
    Git,
    Hardware,
    HostIdentity,
    MeasuringOptions,
    ModelIdentity,
    RunIdentity,
    SuiteOptions,
)
from pytest_agentbench.runs.results import GateResult, Mean, RuleResult
from pytest_agentbench.runs.run_file import BackendUse, Environment, Plan, Run, SessionFacts, write_run
from pytest_agentbench.scorers import load_scorer
from pytest_agentbench.scorers.declaration import scale_of
from pytest_agentbench.stats.decisions import MissingScenarios
from pytest_agentbench.suites.suite import DatasetInfo, Suite

SCALES = {name: scale_of(load_scorer(name)) for name in ("tsq", "repeated", "hallucinated")}

SHOP = Suite(
    "shop", Path("/repository/scenarios/shop"), (), dataset=DatasetInfo("the shop", "f", "data.json", "0" * 64, "hand", 3), scales=SCALES
)


def session_facts(**changes: Any) -> SessionFacts:
    """Returns the facts of a run of the shop, except for its rollouts."""
    facts = SessionFacts(
        id="20260304-050607",
        started_at="2026-03-04T05:06:07+00:00",
        finished_at="2026-03-04T05:06:08+00:00",
        command=("pytest", "-q"),
        verdict="PASS",
        exit_status=0,
        settings=RunOptions(backend="embedded", concurrency=8),
        environment=Environment("3.11", "x", 2, {"pytest": "9"}, None),
        backend=BackendUse(name="embedded", note="", kind="embedded", served_model="m", failure=""),
        plan=Plan(3, 2, 1),
        stopwatch=Stopwatch(verdict="ok"),
    )
    return replace(facts, **changes)


def run_of(*rollouts: Rollout, **changes: Any) -> Run:
    """Returns a run of the shop with these rollouts. `changes` are changes of its fields."""
    read = RunReader()
    for rollout in rollouts:
        read.add(rollout, "tsq", SCALES["tsq"])
    facts = session_facts(stopwatch=stopwatch_of(read.frame.scenarios().timed, CpuShares(), os.cpu_count()))
    return replace(build_run(facts, [plan_suite("shop", SHOP, "default", {"tsq": 0.5})], read), **changes)


def run_directory(directory: Path, *rollouts: Rollout, **changes: Any) -> Path:
    """Writes the journal and run.json of a run of the shop with these rollouts. Returns the directory."""
    directory.mkdir(parents=True)
    (directory / FILE).write_bytes(b"".join(sealed(record_line(rollout)) + b"\n" for rollout in rollouts))
    write_run(run_of(*rollouts, id=directory.name, **changes), directory)
    return directory


def mean(value: float | None = 0.5, low: float | None = 0.25, high: float | None = 0.75, scenarios: int = 9, **changes: Any) -> Mean:
    """Returns a mean over scenarios of the suite, none of them in a cluster with others."""
    return replace(Mean(value, low, high, "suite", scenarios, scenarios, "between-scenario t"), **changes)


def rule_result(rule: str, verdict: str, estimate: float | None = None, **changes: Any) -> RuleResult:
    """Returns the result of a rule about the shop."""
    result = RuleResult(
        verdict=verdict,
        threshold=0.0,
        confidence=0.95,
        n=9,
        trials=(9, 0),
        missing=MissingScenarios(),
        estimate=estimate,
        suite="shop",
        rule=rule,
        kind="score",
        vs_baseline="baseline" in rule,
    )
    return replace(result, **changes)


def gate_result(verdict: str = "PASS", *rules: RuleResult, **changes: Any) -> GateResult:
    """Returns a gate that decides."""
    return replace(GateResult(verdict, decides=True, tests_below=0, compared=(), baselines={}, rules=rules, unmeasured=()), **changes)


def identity_of(**changes: Any) -> RunIdentity:
    """Returns the identity of a run of the shop under git, in which every part has the hash `h`."""
    identity = RunIdentity(
        code=Git("c", dirty=False, diff=None),
        packages={},
        backend=BackendIdentity("h", {}),
        model=ModelIdentity("m", None, None),
        hardware=Hardware((), None),
        host=HostIdentity(2, None, "x", "k", "3.11"),
        data={},
        prompts={},
        tools={},
        agent={},
        scoring={},
        options=MeasuringOptions(8, None, (), 2, "carry", 1, False, {}, None, {"shop": SuiteOptions(1, 600.0, "none")}),
        more={},
        hashes=dict.fromkeys(PARTS, "h"),
    )
    return replace(identity, **changes)
