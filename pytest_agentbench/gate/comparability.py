"""Reasons why the numbers that a rule is about mean nothing, or do not mean the same in a run and its baseline."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_agentbench.gate.evidence import Evidence, Trial
from pytest_agentbench.gate.rules import Rule, SuiteRule
from pytest_agentbench.metrics.registry import single
from pytest_agentbench.metrics.stopwatch import SATURATED, title
from pytest_agentbench.records import Scale

FAILED_CALLS = 0.02  # share of LLM calls that may have failed where latencies are judged: failed ones have none

TIMED = ("latency", "goodput")  # kinds that a saturated client spoils; of rates, those that are `timed`


def incomparable(suite_rule: SuiteRule, run: Evidence, base: Evidence | None) -> str:
    """Why the numbers that a rule is about mean nothing, or not the same in both runs; empty where they do."""
    group, rule = suite_rule.group, suite_rule.rule
    if is_timed(rule) and (why := _badly_timed(rule, run, base if rule.versus else None)):
        return why
    if rule.kind == "latency" and rule.metric != "rollout":
        calls = [call for trial in run.groups.get(group, ()) for call in trial.calls]
        failed = sum(call.failed for call in calls)
        if failed > FAILED_CALLS * len(calls):
            return f"{failed} of {len(calls)} LLM calls failed, and failed calls have no latency"
    if _is_about_goodput(rule) and (why := _other_objectives(run, base if rule.versus else None)):
        return why
    if score := suite_rule.score:
        if missing := unscored(suite_rule, run):
            return f"{missing} of its scores {'are' if missing > 1 else 'is'} missing: the scorer failed"
        if rule.versus and base:
            return scored_apart(group, score, run, base)
    return ""


def scored_apart(group: str, score: str, run: Evidence, base: Evidence) -> str:
    """Returns why values of a score of two runs do not mean the same; empty if they do, as far as it is known."""
    here, there = (each.scale(group, score) for each in (run, base))
    if not here.is_comparable(there):
        return f"the baseline's {score} is on another scale ({there.text}; now {here.text})"
    scorings = run.scored_by(group, score), base.scored_by(group, score)
    if all(scorings) and scorings[0] != scorings[1]:
        new, old = (", ".join(sorted(each)) for each in scorings)
        return f"the baseline was scored in another way ({score} {old}, now {new})"
    return ""


def uncounted(score: str, scale: Scale, trials: Sequence[Trial], allowed: float = 0.0) -> str:
    """Returns why the mean of a score says too little, since its agent errors count as no value; empty if it does not.

    `allowed` is the share of rollouts that may end as agent_error.
    """
    if scale.worst is not None:
        return ""
    errors = sum(trial.status == "agent_error" for trial in trials)
    if errors <= allowed * len(trials):
        return ""
    return (
        f"{errors} of {len(trials)} rollouts ended as agent_error, more than {allowed * 100:g} %, and {score} has no worst value "
        "for them to count as"
    )


def unscored(suite_rule: SuiteRule, run: Evidence) -> int:
    """How many of the scores that a rule looks at are missing because their scorer failed."""
    return sum(suite_rule.score in trial.unscored for trial in run.groups.get(suite_rule.group, ())) if suite_rule.score else 0


def is_timed(rule: Rule) -> bool:
    return rule.kind in TIMED or (rule.kind == "rate" and single()[rule.metric].timed)


def _badly_timed(rule: Rule, run: Evidence, base: Evidence | None) -> str:
    for evidence in filter(None, (run, base)):
        if evidence.facts.stopwatch == SATURATED:
            return f"the timings of {evidence.facts.run} are of a saturated client, not of the backend"
        if unusable := [title(name) for name in _needs(rule, evidence) if name in evidence.facts.unusable]:
            return f"{', '.join(unusable)} of {evidence.facts.run} is not usable: chunks arrived faster than the client's machine read them"
    if base and (there := base.facts.cache) != (here := run.facts.cache):
        return f"the prefix cache was {there} in the baseline, and is {here} now (--agentbench-cache)"
    return ""


def _other_objectives(run: Evidence, base: Evidence | None) -> str:
    """Returns why good calls of a run cannot be counted, or mean something else in its baseline; empty if neither is the case."""
    if not run.facts.slo:
        return "nobody said what a good call is: --agentbench-slo does"
    if base is None or base.facts.slo == run.facts.slo:
        return ""
    now, then = (" ".join(f"{name}={limit:g}ms" for name, limit in each.facts.slo.items()) or "none" for each in (run, base))
    return f"the objectives of good calls are not the baseline's ({then}; now {now})"


def _is_about_goodput(rule: Rule) -> bool:
    """Returns whether a rule counts the calls that meet objectives."""
    return rule.kind == "goodput" or rule.metric == "goodput_per_s"


def _needs(rule: Rule, evidence: Evidence) -> list[str]:
    """What a rule looks at, in the stopwatch's words; rates and durations need no stamp of an event."""
    if _is_about_goodput(rule):
        return [f"goodput.{objective}" for objective in evidence.facts.slo]
    return [f"{rule.metric}.{rule.statistic}"] if rule.kind == "latency" else []
