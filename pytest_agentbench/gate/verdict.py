"""Applies rules to a run and its baseline. Returns a verdict for each rule, with the data needed to check it, and one for the session.

A rule whose metric could not be measured never passes. Doubts about the whole run turn PASS into INCONCLUSIVE, but never change FAIL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from pytest_agentbench.gate.evidence import (
    Evidence,
    RunFacts,
    Trial,
    compare_with_limit,
    good_shares,
    latencies,
    passes,
    samples,
    score_limits,
)
from pytest_agentbench.gate.rules import OF_SCENARIOS, Rule, SuiteRule
from pytest_agentbench.gate.usable_numbers import TIMED, connect_note, incomparable, is_timed, uncounted, unscored
from pytest_agentbench.stats import decisions
from pytest_agentbench.stats.decisions import (
    FAIL,
    FIRST_LOOK,
    INCONCLUSIVE,
    PASS,
    RUN,
    SUITE,
    Decision,
    InterimLooks,
    MissingScenarios,
    Suspect,
    judge,
)
from pytest_agentbench.stats.latency import compare_latency
from pytest_agentbench.stats.paired import against_limit, compare, pair, varying_scenarios
from pytest_agentbench.stats.pass_rates import against_share

INFRA_ERRORS = 0.02  # share of rollouts that may end as infra_error if no rule sets another one
ENOUGH = 0.8  # share of the scenarios that must be measured before a rule about a suite is decided
MAX_HIT_RATIO_DIFFERENCE = 0.1  # difference of prefix cache hit ratios above which a note says that latencies depend on it
CONFIDENCE = 0.95

#: Hash of a rollout -> note if it differs from the baseline's.
DIFFERENT = {
    "agent": "the agent has changed since the baseline",
    "prompts": "the prompts have changed since the baseline",
    "backend": "the backend has changed since the baseline",
}


@dataclass(frozen=True)
class RuleVerdict:
    """The verdict on one gate rule for one suite, with its estimate and interval (`decision`).

    - PASS: the whole interval is on the good side of the threshold, and nothing casts doubt on the run.
    - FAIL: the whole interval is on the bad side. Doubts about the run do not change FAIL.
    - INCONCLUSIVE: the interval contains the threshold, the numbers are missing or not comparable, or a doubt replaced PASS. A run whose
      answers come from a recording has no other verdict.

    A rule `... of run` compares the measured value itself, without an interval. If it is about scores or passes, it is INCONCLUSIVE
    (never FAIL) if the run measured fewer than 80 % of the suite's scenarios, unless the rule comes from the command line.
    """

    suite_rule: SuiteRule
    decision: Decision
    notes: tuple[str, ...] = ()  # further facts for the reader, besides the decision's own reason
    suspects: tuple[Suspect, ...] = ()  # scenarios that may have become worse

    def is_open(self, rounds: int) -> bool:
        """Returns whether the rule is undecided after this many rounds, but more trials might decide it."""
        decision, rule = self.decision, self.suite_rule.rule
        if decision.verdict != INCONCLUSIVE:
            return False
        if decision.low is None:
            return rule.kind == "passes" and rule.pass_rate.k > rounds
        return judge(decision.low, decision.high, decision.threshold) == INCONCLUSIVE


def judge_rules(
    suite_rules: Sequence[SuiteRule], run: Evidence, baselines: Mapping[str, Evidence], confidence: float = CONFIDENCE
) -> list[RuleVerdict]:
    """Returns the verdict on each rule. `baselines` maps groups (suite, or `suite-variant`) to their baselines."""
    reasons = {group: tuple(_pass_obstacles(group, suite_rules, run)) for group in {each.group for each in suite_rules}}
    shared = 1 - (1 - confidence) / max(1, sum(map(_without_margin, suite_rules)))
    interim = run.up_to(run.facts.rounds) if run.facts.rounds >= FIRST_LOOK else run
    return [
        _judged(
            each,
            interim if each.may_decide_early else run,
            base := baselines.get(each.group),
            reasons[each.group],
            _confidence(each, run.facts, base, shared if _without_margin(each) else confidence),
            _allowed(each.group, suite_rules, "agent_error", 0.0),
        )
        for each in suite_rules
    ]


def _confidence(suite_rule: SuiteRule, facts: RunFacts, base: Evidence | None, alone: float) -> float:
    """Returns the confidence of a rule's interval.

    It is `alone`, the confidence of a single check, or a higher one if the rule was also checked between rounds of trials.
    """
    if not facts.most_rounds or not suite_rule.may_decide_early:
        return alone
    old = base.groups.get(suite_rule.group, ()) if base and suite_rule.rule.versus else ()
    base_trials = len(old) / len({trial.scenario for trial in old}) if old else 0.0
    return InterimLooks(facts.most_rounds, base_trials).confidence(facts.rounds, alone)


def _without_margin(suite_rule: SuiteRule) -> bool:
    """Returns whether a rule compares a score with the baseline without a margin, so that chance alone can fail it.

    Several such rules share the error probability of one (Bonferroni).
    """
    return suite_rule.rule.kind == "score" and suite_rule.rule.versus and suite_rule.rule.margin == 0


def session_verdict(judged: Iterable[RuleVerdict]) -> str:
    """Returns FAIL if a rule fails, PASS if all pass, else INCONCLUSIVE (an intersection-union test)."""
    return decisions.overall(each.decision.verdict for each in judged)


def cannot_measure(group: str, suite_rules: Sequence[SuiteRule], run: Evidence) -> bool:
    """Returns whether a group counts as not measured: rollouts were not run, too many ended as infra_error, or scores are missing."""
    own = [each for each in suite_rules if each.group == group]
    return any(True for _ in _unmeasured(group, suite_rules, run)) or any(unscored(each, run) for each in own)


def _pass_obstacles(group: str, suite_rules: Sequence[SuiteRule], run: Evidence) -> Iterator[str]:
    """Yields the reasons why no rule about this group may pass."""
    yield from _unmeasured(group, suite_rules, run)
    if not any(trial.status in ("ok", "limit") for trial in run.groups.get(group, ())):
        yield "no rollout ended as ok or limit"


def _unmeasured(group: str, suite_rules: Sequence[SuiteRule], run: Evidence) -> Iterator[str]:
    statuses = Counter(trial.status for trial in run.groups.get(group, ()))
    if lost := run.facts.lost + statuses["cancelled"]:
        yield f"{lost} of {run.facts.planned} planned rollouts were not run"
    total = statuses.total()
    allowed = _allowed(group, suite_rules, "infra_error", INFRA_ERRORS)
    if total and statuses["infra_error"] / total > allowed:
        yield f"{statuses['infra_error']} of {total} rollouts ended as infra_error, more than {allowed * 100:g} %"


def _allowed(group: str, suite_rules: Sequence[SuiteRule], status: str, usual: float) -> float:
    """Returns the share of a group's rollouts that may end with a status: the limit of the rule about it, or else `usual`."""
    return next((each.rule.limit for each in suite_rules if each.group == group and each.rule.metric == status), usual)


def _judged(
    suite_rule: SuiteRule, run: Evidence, base: Evidence | None, reasons: Sequence[str], confidence: float, agent_errors: float
) -> RuleVerdict:
    """Returns the verdict on one rule.

    `reasons` are doubts about the whole group, with which no rule may pass. `agent_errors` is the share of rollouts that may end as
    agent_error.
    """
    group, rule = suite_rule.group, suite_rule.rule
    excluded = run.facts.quarantined.get(group, ()) if suite_rule.is_about_scenarios else ()
    if run.facts.recorded:
        return RuleVerdict(suite_rule, _undecided(rule, "the answers come from a recording, so no model and no server was measured"))
    if rule.versus and (base is None or group not in base.groups):
        where = "there is no baseline" if base is None else f"the baseline {base.facts.run} has no results of {group}"
        return RuleVerdict(suite_rule, _undecided(rule, f"{where}; name one with --agentbench-baseline"))
    if excluded:  # The quarantine of the run also applies to its baseline
        run, base = run.without(group, excluded), base.without(group, excluded) if base else None
    if why := incomparable(suite_rule, run, base):
        return RuleVerdict(suite_rule, _undecided(rule, why))
    if base and rule.versus and (why := _uncounted(suite_rule, base, agent_errors)):
        return RuleVerdict(suite_rule, _undecided(rule, f"in the baseline {why}"))
    decision = _decide(suite_rule, run, base if rule.versus else None, confidence)
    part = (*_too_small_part(suite_rule, decision, run),)
    reasons = (*reasons, *part, *filter(None, [_uncounted(suite_rule, run, agent_errors)]))
    if (reasons and decision.verdict == PASS) or (part and rule.of == RUN):  # a value of a part says nothing about the suite
        decision = replace(decision, verdict=INCONCLUSIVE)
    if reasons:
        decision = replace(decision, reason="; ".join(filter(None, (*reasons, decision.reason))))
    notes = [f"left out because of quarantine: {', '.join(excluded)}"] if excluded else []
    if rule.kind in OF_SCENARIOS and (skipped := [each for each in run.facts.unsupported.get(group, ()) if each not in excluded]):
        notes.append(f"skipped because they need unsupported features: {', '.join(skipped)}")
    if rule.kind == "score" and not suite_rule.scale.declared:
        notes.append(f"{rule.metric}: {suite_rule.scale.text}")
    notes += _notes(suite_rule, run, base if rule.versus else None)
    notes += _determinism_notes(suite_rule, run, base) if base and suite_rule.deterministic and rule.versus and rule.of == SUITE else ()
    return RuleVerdict(suite_rule, decision, tuple(notes), _suspects(suite_rule, run, base) if base and rule.versus else ())


def _uncounted(suite_rule: SuiteRule, run: Evidence, agent_errors: float) -> str:
    """Returns a reason if a rule is about a mean that leaves out too many rollouts with the status agent_error, or an empty string."""
    if suite_rule.rule.kind != "score":
        return ""
    return uncounted(suite_rule.rule.metric, suite_rule.scale, run.groups.get(suite_rule.group, ()), agent_errors)


def _too_small_part(suite_rule: SuiteRule, decision: Decision, run: Evidence) -> Iterator[str]:
    """Yields the reason if too few scenarios were measured for a verdict on the suite."""
    if suite_rule.rule.kind not in OF_SCENARIOS:
        return
    if suite_rule.rule.versus:
        total = decision.n + decision.missing.total
        if decision.n < ENOUGH * total:
            yield f"only {decision.n} of {total} scenarios are in both the run and its baseline; a verdict needs {ENOUGH * 100:g} %"
    elif not suite_rule.any_part and decision.n < ENOUGH * (size := run.facts.scenarios.get(suite_rule.group, 0)):
        yield (
            f"only {decision.n} of {size} scenarios were measured, and a verdict needs {ENOUGH * 100:g} %; "
            "to judge only this part, give the rule with --agentbench-gate"
        )


def _notes(suite_rule: SuiteRule, run: Evidence, base: Evidence | None) -> Iterator[str]:
    """Yields notes about nodes that differ, and about changes of agent, prompts, backend and prefix cache hits since the baseline.

    `base` is None for a rule that does not use a baseline.
    """
    if suite_rule.rule.kind in TIMED:
        yield from filter(None, dict.fromkeys(connect_note(each.facts.connect_ms) for each in (run, base) if each))
    if base is None:
        return
    for part, sentence in DIFFERENT.items():
        new, old = run.hashes(suite_rule.group, part), base.hashes(suite_rule.group, part)
        if new and old and new != old:
            yield sentence
    ratios = run.facts.prefix_cache_hit_ratio, base.facts.prefix_cache_hit_ratio
    if (
        is_timed(suite_rule.rule)
        and ratios[0] is not None
        and ratios[1] is not None
        and abs(ratios[0] - ratios[1]) > MAX_HIT_RATIO_DIFFERENCE
    ):
        yield f"prefix cache hits were {ratios[0] * 100:.0f} % of the prompt tokens, in the baseline {ratios[1] * 100:.0f} %"


def _determinism_notes(suite_rule: SuiteRule, run: Evidence, base: Evidence) -> Iterator[str]:
    """Yields a note if a suite marked `deterministic` has differing trials, or if one trial per scenario cannot show that."""
    new, old = (samples(each.groups.get(suite_rule.group, ()), suite_rule.rule.metric, suite_rule.scale) for each in (run, base))
    pairs, _ = pair(new, old)
    if differing := varying_scenarios(pairs):
        what = f"trials of {len(differing)} scenarios differ ({differing[0]})"
        yield f"the suite is marked deterministic, but {what}, so it was judged like any other suite"
    elif all(len(each.new.scores) == len(each.base.scores) == 1 for each in pairs.values()):
        yield "one trial of each scenario cannot confirm that the suite is deterministic, as marked; run two trials for the baseline"


def _suspects(suite_rule: SuiteRule, run: Evidence, base: Evidence) -> tuple[Suspect, ...]:
    if suite_rule.rule.kind != "score":
        return ()
    both = [samples(evidence.groups.get(suite_rule.group, ()), suite_rule.rule.metric, suite_rule.scale) for evidence in (run, base)]
    sign = -1 if suite_rule.scale.falling else 1
    new, old = ({scenario: [sign * score for score in each.scores] for scenario, each in measured.items()} for measured in both)
    same = {scenario for scenario in new if scenario in old and both[0][scenario].content == both[1][scenario].content}
    worse = decisions.suspects({scenario: new[scenario] for scenario in new if scenario in same}, old)
    return tuple(replace(each, base=sign * each.base + 0.0, new=sign * each.new + 0.0) for each in worse)


def _decide(suite_rule: SuiteRule, run: Evidence, base: Evidence | None, confidence: float) -> Decision:
    rule = suite_rule.rule
    trials = run.groups.get(suite_rule.group, ())
    old = base.groups[suite_rule.group] if base else ()
    match rule.kind:
        case "score" | "passes":
            return _score(suite_rule, trials, old, confidence)
        case "goodput":
            return against_limit(good_shares(trials, run.facts.slo), rule.limit, confidence=confidence)
        case "latency":
            q = int(rule.statistic.removeprefix("p"))
            if rule.versus:
                new, base_times = (latencies(each, rule.metric) for each in (trials, old))
                return compare_latency(new, base_times, q, rule.margin, confidence=confidence)
            return compare_with_limit(trials, rule.metric, q, rule.limit, confidence)
        case "rate":
            number, before = (each.facts.number(rule.metric, suite_rule.group) if each else None for each in (run, base))
            return _fact(rule, number, before, trials)
    return _fact(rule, sum(trial.status == rule.metric for trial in trials) / len(trials) if trials else None, None, trials)


def _score(suite_rule: SuiteRule, trials: Sequence[Trial], old: Sequence[Trial], confidence: float) -> Decision:
    rule, better = suite_rule.rule, not suite_rule.scale.falling
    if rule.of == RUN:
        values = _measured(suite_rule, trials)
        return replace(_fact(rule, fsum(values) / len(values) if values else None, None, trials), n=len(values))
    if rule.kind == "passes":
        return against_share(passes(trials, suite_rule.known_pass_threshold), rule.pass_rate, rule.limit, of=rule.of, confidence=confidence)
    new = samples(trials, rule.metric, suite_rule.scale)
    base = samples(old, rule.metric, suite_rule.scale)
    limits = score_limits(suite_rule.scale, new, base)
    if rule.versus:
        return compare(
            new,
            base,
            rule.margin,
            of=rule.of,
            limits=limits,
            confidence=confidence,
            higher_is_better=better,
            deterministic=suite_rule.deterministic,
        )
    return against_limit(new, rule.limit, of=rule.of, limits=limits, confidence=confidence, higher_is_better=better)


def _measured(suite_rule: SuiteRule, trials: Sequence[Trial]) -> list[float]:
    """Returns the mean score or the pass rate (depending on the rule) of each scenario, without scenarios for which it is unknown."""
    rule = suite_rule.rule
    if rule.kind == "passes":
        counts = [(round(fsum(each.scores)), len(each.scores)) for each in passes(trials, suite_rule.known_pass_threshold).values()]
        return [estimate.value for each in counts if (estimate := rule.pass_rate.estimate(*each))]
    return [each.mean for each in samples(trials, rule.metric, suite_rule.scale).values() if each.scores]


def _fact(rule: Rule, value: float | None, base: float | None, trials: Sequence[Trial]) -> Decision:
    """Returns the decision of a rule whose value is compared as it is, without an interval."""
    blank = _undecided(rule, "")
    if value is None or (rule.versus and not base):
        return replace(blank, reason=f"{rule.metric} is unknown in the {'run' if value is None else 'baseline'}")
    estimate = value / base if rule.versus and base else value
    holds = estimate >= blank.threshold if rule.at_least else estimate <= blank.threshold
    return replace(
        blank,
        verdict=PASS if holds else FAIL,
        estimate=estimate,
        n=len({trial.scenario for trial in trials}),
        trials=(len(trials), 0),
        method="a fact",
        of=rule.of,
    )


def _undecided(rule: Rule, reason: str) -> Decision:
    """Returns an INCONCLUSIVE decision without estimate and interval."""
    sign = -1 if rule.at_least else 1
    threshold = (1 + sign * rule.margin if rule.relative else sign * rule.margin) if rule.versus else rule.limit
    return Decision(INCONCLUSIVE, threshold, CONFIDENCE, 0, (0, 0), MissingScenarios(), reason=reason)
