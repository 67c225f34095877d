"""Intervals of differences as a picture has them: what the gate decided, what arms and runs differ in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.records import Json
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.directory import name_of
from pytest_agentbench.stats.decisions import Decision

if TYPE_CHECKING:
    from pytest_agentbench.gate.run_comparison import ReferenceComparison, RunComparison

METRICS = ("ttft", "itl", "e2e")


def intervals(run: Run) -> list[Json]:
    """Those of a run's own gate and of its arms."""
    rules = run.gate.rules if run.gate else ()
    ruled = [_interval(f"{each.suite} {each.rule}", each, each.threshold, each.verdict) for each in rules]
    arms = run.ab.comparisons if run.ab else ()
    compared = [
        _interval(f"{each.suite} {each.metric}: {each.new_arm} against {each.base_arm}", each, _even(each.metric), each.finding)
        for each in arms
    ]
    return [each for each in (*ruled, *compared) if each]


def compared_runs(directories: Sequence[Path]) -> RunComparison:
    """Returns the comparison of some runs, the first of which is the reference; raises ConfigError."""
    from pytest_agentbench.gate.run_comparison import RunComparison, distinct
    from pytest_agentbench.gate.run_pair import read  # a session's own page compares no runs, and need not wait for the statistics

    names = distinct([name_of(directory.resolve()) or directory.resolve().name for directory in directories])
    return RunComparison(names, tuple(map(read, directories)))


def sides(runs: RunComparison) -> list[Json]:
    """Returns the intervals of other runs against the first one."""
    return [each for each in _sides(runs) if each]


def _sides(runs: RunComparison) -> Iterator[Json]:
    from pytest_agentbench.gate.run_comparison import PERCENTILES, latency_against, score_against

    first = runs.reference.facts
    for group, suite in first.suites.items():
        for score in suite.scorers:
            yield from _against(runs, f"{group} {score}", score, score_against(runs, group, score))
    for metric in METRICS:
        for q in PERCENTILES:
            yield from _against(runs, f"{metric}.p{q}", f"{metric}.p{q}", latency_against(runs, metric, q))


def _against(runs: RunComparison, title: str, metric: str, found: Sequence[ReferenceComparison]) -> Iterator[Json]:
    for name, each in zip(runs.names[1:], found, strict=True):
        if each.decision:
            yield _interval(f"{title}: {name} against {runs.names[0]}", each.decision, _even(metric), "")


def _even(metric: str) -> float:
    """Where nothing differs: latencies are compared as ratios, scores by their difference."""
    return 1.0 if "." in metric else 0.0


def _interval(title: str, decision: Decision, threshold: float, verdict: str) -> Json:
    """Empty where there is no number."""
    if decision.estimate is None:
        return {}
    ends = {"estimate": decision.estimate, "low": decision.low, "high": decision.high}
    return {"title": title, **ends, "threshold": threshold, "verdict": verdict, "confidence": decision.confidence}
