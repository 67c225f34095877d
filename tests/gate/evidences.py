"""Builds evidence for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_agentbench.gate.evidence import CallTimes, Evidence, RunFacts, Trial
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.records import scale_in
from tests.made_runs import SCALES

HASHES = {"scenario": "s", "agent": "a", "scorers": {"tsq": "c"}, "backend": "b"}


def trial(scenario: object, score: float | None = 1.0, *, number: int = 1, status: str = "ok", ttft: float = 100.0, **keys: Any) -> Trial:
    """Returns a trial of the suite shop with one call."""
    scores = {"tsq": score, "repeated": 0.0} if score is not None else {}
    call = CallTimes({"ttft": ttft, "tpot": 10.0, "e2e": ttft + 100, "itl": 20.0}, 11, failed=False)
    fields: dict[str, Any] = {"content": HASHES, "scores": scores, "duration_ms": 1000.0, "calls": (call,), **keys}
    return Trial("shop", "shop", str(scenario), number, status, **fields)


def evidence(trials: Iterable[Trial], **facts: Any) -> Evidence:
    """Returns a run with these trials. They cover its whole data set, unless `scenarios` is given."""
    every = [*trials]
    known: dict[str, Any] = {
        "planned": len(every),
        "scenarios": {"shop": len({each.scenario for each in every})},
        "scales": {"shop": SCALES},
        "stopwatch": "ok",
        "rates": {"rollouts_per_hour": 1000.0},
        **facts,
    }
    return Evidence.of(RunFacts(known.pop("run", "now"), **known), every)


def asked(text: str, *, any_part: bool = False, passes: bool = False) -> SuiteRule:
    rule = parse_rule(text, ("tsq", "repeated"), SCALES, passes=passes)
    return SuiteRule("shop", rule, scale_in(SCALES, rule.metric), any_part)
