"""The reasons why the numbers of a rule are meaningless, or cannot be compared between a run and its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial
from pytest_agentbench.gate.rules import Rule, SuiteRule
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.registry import single
from pytest_agentbench.metrics.stopwatch import LIGHTER_LOAD, OF_CALLS, READ_TOO_LATE, SATURATED, title
from pytest_agentbench.metrics.timings import TIMESTAMP_METRICS
from pytest_agentbench.records import Scale

FAILED_CALLS = 0.02  # share of LLM calls that may fail before a latency rule is INCONCLUSIVE, because failed calls have no latency

NEW_BASELINE = "promote a new baseline"  # advice if the numbers of a baseline are not comparable

MAX_CLOCK_SHARE = 0.01  # uncertainty of the clocks of nodes above which a rule on a rate is INCONCLUSIVE, as a share of the time

TIMED = ("latency", "goodput")  # kinds of rules that a saturated client makes unreliable, besides rates that are `timed`


def incomparable(suite_rule: SuiteRule, run: Evidence, base: Evidence | None) -> str:
    """Returns why the numbers of a rule are meaningless or not comparable between both runs, or an empty string."""
    group, rule = suite_rule.group, suite_rule.rule
    if is_timed(rule) and (why := _badly_timed(rule, run, base if rule.versus else None)):
        return why
    if rule.kind == "latency" and rule.metric != "rollout":
        calls = [call for trial in run.groups.get(group, ()) for call in trial.calls]
        failed = sum(call.failed for call in calls)
        if failed > FAILED_CALLS * len(calls):
            return f"{failed} of {len(calls)} LLM calls failed, more than {FAILED_CALLS * 100:g} %, and failed calls have no latency"
    if _is_about_goodput(rule) and (why := _other_objectives(run, base if rule.versus else None)):
        return why
    if score := suite_rule.score:
        if missing := unscored(suite_rule, run):
            return missing_scores(missing, score)
        if rule.versus and base:
            return scoring_difference(group, score, run, base)
    return ""


def scoring_difference(group: str, score: str, run: Evidence, base: Evidence) -> str:
    """Returns how the scale or the scorer of a score differs between two runs, or an empty string if no difference is known."""
    new_scale, old_scale = (each.scale(group, score) for each in (run, base))
    if not new_scale.is_comparable(old_scale):
        return f"the scale of {score} has changed ({old_scale.text}; now {new_scale.text}); {NEW_BASELINE}"
    scorings = run.scored_by(group, score), base.scored_by(group, score)
    if all(scorings) and scorings[0] != scorings[1]:
        new, old = (", ".join(sorted(each)) for each in scorings)
        return f"the baseline's {score} is from another version of the scorer (hash {old}; now {new}); {NEW_BASELINE}"
    return ""


def uncounted(score: str, scale: Scale, trials: Sequence[Trial], allowed: float = 0.0) -> str:
    """Returns a reason if the mean of a score leaves out too many rollouts that ended as agent_error, or an empty string.

    Such a rollout counts as the worst value of the scale. If the scale has none, it is left out. `allowed` is the share of rollouts that
    may end as agent_error.
    """
    if scale.worst is not None:
        return ""
    errors = sum(trial.status == "agent_error" for trial in trials)
    if errors <= allowed * len(trials):
        return ""
    return (
        f"{errors} of {len(trials)} rollouts ended as agent_error, more than {allowed * 100:g} %, and are left out of {score} "
        "because its scorer declares no worst value (`range`)"
    )


def unscored(suite_rule: SuiteRule, run: Evidence) -> int:
    """Returns how many of the scores that a rule uses are missing because their scorer failed."""
    return sum(suite_rule.score in trial.unscored for trial in run.groups.get(suite_rule.group, ())) if suite_rule.score else 0


def missing_scores(count: int, score: str) -> str:
    """Returns a sentence about scores that are missing because their scorer failed."""
    missing = f"{count} {score} scores are" if count > 1 else f"a {score} score is"
    return f"{missing} missing because the scorer failed; correct the scorer and run `agentbench rescore`"


def is_timed(rule: Rule) -> bool:
    """Returns whether a rule depends on times that this machine, the client of the backend, measured: latencies, goodput, some rates."""
    return rule.kind in TIMED or (rule.kind == "rate" and single()[rule.metric].timed)


def _badly_timed(rule: Rule, run: Evidence, base: Evidence | None) -> str:
    for evidence in filter(None, (run, base)):
        if evidence.facts.stopwatch == SATURATED:
            return f"the client of {evidence.facts.run} was too busy to time calls (saturated); {LIGHTER_LOAD}"
        if unusable := [title(name) for name in _needs(rule, evidence) if name in evidence.facts.unusable]:
            return f"not usable in {evidence.facts.run}: {', '.join(unusable)}; {READ_TOO_LATE}"
        if rule.metric in registry.rates() and (share := evidence.facts.clock_share) > MAX_CLOCK_SHARE:
            return (
                f"the clocks of the nodes of {evidence.facts.run} are known only to {share * 100:.2g} % of the time over which rates are "
                f"taken, and {MAX_CLOCK_SHARE * 100:g} % is needed; run more rollouts"
            )
    needed = {part for name in _needs(rule, run) for part in name.split(".")}
    if base and needed & {*TIMESTAMP_METRICS} and (why := version_difference(base.facts, run.facts)):
        return f"{why}; {NEW_BASELINE}"
    if base and (before := base.facts.cache) != (now := run.facts.cache):
        return f"the policy for the prefix cache is {now}, but was {before} in the baseline; use --agentbench-cache={before}"
    return ""


def version_difference(old: RunFacts, new: RunFacts) -> str:
    """Returns why TTFT, TPOT and ITL are not comparable between versions of the stopwatch, or an empty string if they are.

    In version 1, the kernel delayed the acknowledgements of answers. This matters only if many calls of the other run could be affected.
    """
    share = max(old.delayed_ack_share, new.delayed_ack_share)
    versions = sorted({old.stopwatch_version, new.stopwatch_version})
    if len(versions) == 1 or share <= OF_CALLS:
        return ""
    return (
        f"TTFT of versions {versions[0]} and {versions[1]} of the stopwatch differs by up to 40 ms in {share * 100:.2g} % of these calls "
        "if the server does not set TCP_NODELAY"
    )


def connect_note(connect_ms: Mapping[str, float]) -> str:
    """Returns a sentence that names the nodes and their times to connect to the backend. Empty if `connect_ms` is empty."""
    if not connect_ms:
        return ""
    times = ", ".join(f"{value:.3g} ms from {node}" for node, value in sorted(connect_ms.items(), key=lambda each: (each[1], each[0])))
    return f"nodes are at different distances from the backend, which is a part of latencies: connecting takes {times}"


def _other_objectives(run: Evidence, base: Evidence | None) -> str:
    """Returns why the goodput of a run is unknown or not comparable with the baseline's, or an empty string."""
    if not run.facts.slo:
        return "goodput needs latency objectives; set them with --agentbench-slo, for example ttft=500ms"
    if base is None or base.facts.slo == run.facts.slo:
        return ""
    now, then = (" ".join(f"{name}={limit:g}ms" for name, limit in each.facts.slo.items()) or "none" for each in (run, base))
    return f"the latency objectives are {now}, but were {then} in the baseline; use the same --agentbench-slo"


def _is_about_goodput(rule: Rule) -> bool:
    """Returns whether a rule counts the calls that meet objectives."""
    return rule.kind == "goodput" or rule.metric == "goodput_per_s"


def _needs(rule: Rule, evidence: Evidence) -> list[str]:
    """Returns the names of the timings that a rule uses, such as `ttft.p99`. Rates and durations need no timestamps of events."""
    if _is_about_goodput(rule):
        return [f"goodput.{objective}" for objective in evidence.facts.slo]
    return [f"{rule.metric}.{rule.statistic}"] if rule.kind == "latency" else []
