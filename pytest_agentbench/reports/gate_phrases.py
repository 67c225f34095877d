"""The sentences of reports about gate rules and comparisons of arms, and those in annotations of a commit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE, hit_ratio
from pytest_agentbench.gate.needed import MOST_SCENARIOS, Needed
from pytest_agentbench.gate.rules import RULE_PATTERN
from pytest_agentbench.records import EVALUABLE, MOST_TRIALS
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.phrases import count, general, number, percent, significant
from pytest_agentbench.reports.view import complete_comparisons, score_of
from pytest_agentbench.runs.results import ArmResult, ArmsCompared, GateResult, InterimLook, Mean, MetricCompared, RoundsResult, RuleResult
from pytest_agentbench.runs.run_file import Failure, Run
from pytest_agentbench.stats.decisions import FEWEST, RUN, Suspect
from pytest_agentbench.suites.arms import CARRY, PRIMED

#: Reason -> why scenarios are left out of the comparison with a baseline.
MISSING = {
    "only_new": "not in the baseline",
    "only_base": "only in the baseline",
    "changed": "with changed content",
    "unmeasured": "not measured",
}

#: Question of a rule -> what a run needs more of for a narrower interval.
NARROWER = {"suite": "trials", "population": "scenarios"}

#: A caveat of comparisons of latencies between two runs. Arms of one session do not have it, because their blocks alternate.
LOAD = "the load may differ"

BY_VALUE = "judged by the measured value"

#: About scenarios with lower scores, none of which is a claim.
NO_CLAIM = f"no scenario alone is significantly lower: such a claim needs {FEWEST} trials of it in both runs; a rule judges all together"
NO_TEST = "the suite is marked deterministic, so these lower scores are facts that need no test of significance"

SHOWN_ONLY = "shown only: the tests decide"

UNCHECKED = "no rollout ran, so the rule was not checked"

BY_CHANCE = "About one in ten of these scenarios is listed by chance (Benjamini and Hochberg). They do not affect the verdict."

LEVEL_OF_LOOKS = "Each interim look has its own confidence level, so that all looks together have the error rate of one look at 95 %."

DIFFERENCES = (
    "Paired by scenario. Scores: difference of means. Latencies (ms): ratio, above 1 is slower. "
    "A difference is shown if the interval excludes 0 (scores) or 1 (ratios)."
)

FAMILY_OF_ARMS = (
    "For each metric, all comparisons together are wrong in at most 5 % of runs (Holm). The intervals have a level of 95 % or more."
)


def gate(result: GateResult, rounds: RoundsResult | None = None) -> str:
    """Returns the gate's verdict and its `circumstances`."""
    return "; ".join(filter(None, [result.verdict, circumstances(result, rounds)]))


def circumstances(result: GateResult, rounds: RoundsResult | None = None) -> str:
    """Returns how many trial rounds ran if that was not fixed, the baselines, and failed tests that do not count. Empty without these."""
    runs = sorted({each.run for each in result.baselines.values()})
    facts = [rounds_of_trials(rounds)] if rounds else []
    facts += [f"compared with {', '.join(runs)}"] if runs else []
    if below := result.tests_below:
        facts.append(f"{count(below, 'test')} below a threshold, not counted by the gate")
    if not result.decides:
        facts.append(SHOWN_ONLY)
    return "; ".join(facts)


def without_rules(result: GateResult) -> str:
    """Returns the verdict of a gate that has no rule for the suites that ran."""
    return f"{result.verdict}: no rule applies to the suites that ran"


def rounds_of_trials(rounds: RoundsResult) -> str:
    """`the verdict stands after 2 of 5 trial rounds, 300 rollouts saved`: how many trial rounds ran, and why no more."""
    ran, most = rounds.ran, rounds.most
    if rounds.stands:
        return f"the verdict stands after {ran} of {most} trial rounds" + (f", {rounds.saved:,} rollouts saved" if rounds.saved else "")
    if ran == most:
        return f"after all {most} trial rounds"
    if not ran:
        return f"stopped before the second of {most} trial rounds was complete"
    return f"stopped after {ran} of {most} trial rounds"


def interim_look(rounds: RoundsResult, value: InterimLook, rule: RuleResult) -> str:
    """`2 of 5: INCONCLUSIVE: banking tsq.mean -0.004 [-0.061, +0.053] at 99.39 %, ...`: a rule after 2 of 5 trial rounds."""
    level = "" if rule.low is None else f" at {_confidence(rule.confidence)}"
    return f"{value.round} of {rounds.most}: {_decided(rule, level)}"


def result(rule: RuleResult) -> str:
    """`PASS: banking tsq.mean -0.004 [-0.021, +0.013], required >= -0.05 vs baseline (suite)`: the verdict on a rule, and its estimate."""
    return f"{_decided(rule)}{_unseen(rule)}"


def rule(value: RuleResult) -> str:
    """`PASS: banking tsq.mean ...; threshold -0.050; 100 scenarios, ...`: the `result` of a rule, and the data and method behind it."""
    ground = "" if value.estimate is None else f"; threshold {_amount(value, value.threshold)}; {_basis(value)}"
    return f"{_decided(value)}{ground}{_unseen(value)}"


def _decided(rule: RuleResult, level: str = "", how: str = "") -> str:
    metric, required = _parts(rule, how)
    if rule.estimate is None:
        return f"{rule.verdict}: {rule.suite} {metric}, required {required}"
    ends = "" if rule.low is None or rule.high is None else f" [{_amount(rule, rule.low)}, {_amount(rule, rule.high)}]{level}"
    return f"{rule.verdict}: {rule.suite} {metric} {_amount(rule, rule.estimate)}{ends}, required {required}"


def measured_and_required(rule: RuleResult, mean: Mean | None = None) -> str:
    """`banking tsq.mean 0.571 [0.412, 0.700], required >= 0.6 (suite)`: the measured value of a rule, and its requirement.

    A rule that judges the value alone has no interval. If `mean` is given, its interval is in the text, and so is that it is not judged:
    `required >= 0.6 (this run, judged by the measured value)`.
    """
    shown = rule if mean is None else replace(rule, low=mean.low, high=mean.high)
    return _decided(shown, how=BY_VALUE if mean and mean.low is not None else "").removeprefix(f"{rule.verdict}: ")


def _parts(rule: RuleResult, how: str = "") -> tuple[str, str]:
    """Splits the text of a rule into its metric and its requirement: `tsq.mean` and `>= 0.6 (this run)`. `how` ends the brackets."""
    match = RULE_PATTERN.fullmatch(rule.rule)
    metric = match["metric"] if match else rule.rule.split()[0]
    required, _, of = rule.rule.removeprefix(metric).strip().partition(" of ")
    remark = ", ".join(filter(None, ["this run" if RUN in (of, rule.of) else of or rule.of, how]))
    return metric, f"{required} ({remark})" if remark else required


def _unseen(rule: RuleResult) -> str:
    """Returns in which share of rollouts a rule may miss failures if its suite is wrongly marked deterministic. Empty for other suites."""
    if rule.unseen is None:
        return ""
    return f"; the suite is marked deterministic; if it is not, failures in up to {rule.unseen * 100:.1f} % of its rollouts can be missed"


def reason(rule: RuleResult) -> str:
    """Returns why a rule is INCONCLUSIVE. Empty for other verdicts."""
    undecided = f"the interval contains the threshold: more {NARROWER.get(rule.of, 'trials or scenarios')} make it narrower"
    return rule.reason or (undecided if rule.verdict == "INCONCLUSIVE" else "")


def needs(value: Needed | None) -> str:
    """`4 more trials of each scenario: 400 rollouts, about 6 min at this speed`: what an INCONCLUSIVE rule needs. Empty if unknown."""
    if value is None:
        return ""
    if value.baseline:
        return "more trials of the baseline: with its present ones, no number of trials of this run decides at this value"
    if not value.rollouts:
        most = f"{MOST_TRIALS:,} trials" if value.trials else f"{MOST_SCENARIOS:,} scenarios"
        return f"more than {most}, because the measured value is too close to the threshold"
    what = f"{count(value.trials, 'more trial')} of each scenario" if value.trials else count(value.scenarios, "more scenario")
    return f"{what}: {count(value.rollouts, 'rollout')}{'' if value.minutes is None else f', {_minutes(value.minutes)} at this speed'}"


def _minutes(minutes: float) -> str:
    """`under a minute`, `about 6 min` or `about 2 h 05 min`: a duration."""
    if minutes < 1:
        return "under a minute"
    whole = math.ceil(minutes)
    return f"about {whole} min" if whole < 120 else f"about {whole // 60} h {whole % 60:02} min"


def power(rule: RuleResult) -> str:
    """Returns which change a run of this size detects, and with which margin it can pass. Empty if that is not known."""
    if rule.detectable is None:
        return ""
    if not rule.vs_baseline:
        return f"a run of this size detects a distance of {_reach(rule, rule.detectable)} from the threshold 4 times out of 5"
    if rule.width is not None and rule.floor is not None and rule.detectable >= rule.width:
        return "a run of this size is too small to detect any change"
    margin = rule.passable
    unchanged = f"; if nothing has changed, it passes as often with a margin of {_reach(rule, margin)}" if margin is not None else ""
    return f"a run of this size detects a change of {_reach(rule, rule.detectable)} 4 times out of 5{unchanged}"


def least_margin(rule: RuleResult) -> str:
    """Returns the smallest margin with which a run of this size can pass. Empty if the rule was decided or has a larger margin."""
    least, undecided = rule.floor, rule.verdict == "INCONCLUSIVE" and not rule.reason
    if rule.detectable is None or least is None or not undecided or not rule.vs_baseline or not 0 < abs(rule.threshold) <= least:
        return ""
    return f"a run of this size cannot pass with a margin below {least:.3f}, whatever it measures"


def p_worse(rule: RuleResult) -> str:
    """Returns the p-value of the claim that the scores got worse. Empty if it was not computed."""
    chance = "if nothing changed, scores at least this much worse have probability"
    return "" if rule.p_worse is None else f"{chance} {rule.p_worse:.3g} (p-value, permuting the trials of each scenario)"


def left_out_scenarios(rule: RuleResult) -> str:
    """`scenarios left out: 3 not in the baseline`: the scenarios that a rule does not compare. Empty if there are none."""
    parts = ", ".join(f"{amount} {what}" for name, what in MISSING.items() if (amount := getattr(rule.missing, name)))
    return f"scenarios left out: {parts}" if parts else ""


def change(rule: RuleResult, suspect: Suspect, suite: str) -> tuple[str | Code, ...]:
    """`banking-017 tsq 1.000 -> 0.000`: a lower score of a scenario, with the name of the `suite` if that is given."""
    return Code(suspect.scenario, "scenario"), f" {f'{suite} ' if suite else ''}{score_of(rule)} {suspect.base:.3f} -> {suspect.new:.3f}"


def claim(rule: RuleResult, suspect: Suspect, suite: str) -> Text:
    """`banking-017 tsq 1.000 -> 0.000 (p 0.002)`: a scenario whose score is significantly lower, with the p-value."""
    return (*change(rule, suspect, suite), f" (p {suspect.p:.3g})")


def _basis(rule: RuleResult) -> str:
    new, base = rule.trials
    if rule.method == "a fact":
        return f"the measured value of {new} rollouts"
    what = "calls" if rule.kind == "latency" and not rule.rule.startswith("rollout.") else "trials"
    both = f"{new} and {base}" if rule.vs_baseline else f"{new}"
    load = f"; {LOAD}" if rule.kind == "latency" and rule.vs_baseline else ""
    method = rule.method if rule.low is None else f"{_confidence(rule.confidence)} {rule.method}"
    return f"{rule.n} scenarios, {both} {what}, {method}{load}"


def _confidence(confidence: float) -> str:
    """`95 %`, or `99.39 %` for an interim look."""
    return f"{confidence * 100:.4g} %"


def _amount(rule: RuleResult, value: float) -> str:
    kind, versus = rule.kind, rule.vs_baseline
    if versus and kind != "score":
        return f"{(value - 1) * 100:+.1f} %"
    if kind in ("share", "goodput"):
        return f"{value * 100:.2f} %"
    if kind == "latency":
        return f"{number(value)} ms"
    if kind == "rate":
        return significant(value)
    return f"{value:+.3f}" if versus else number(value, 3)


def _reach(rule: RuleResult, reach: float) -> str:
    return _amount(replace(rule, vs_baseline=rule.kind == "latency" and rule.vs_baseline), reach).lstrip("+")


def outcome(rule: RuleResult) -> str:
    """`FAIL: 0.412 [0.371, 0.453]; too few scenarios`: the verdict, estimate and reason of a rule, without the text of the rule."""
    ends = "" if rule.low is None or rule.high is None else f" [{general(rule.low)}, {general(rule.high)}]"
    value = "nothing measured" if rule.estimate is None else f"{general(rule.estimate)}{ends}"
    return f"{rule.verdict}: {'; '.join(filter(None, (value, rule.reason)))}"


def fall(suspect: Suspect) -> str:
    """`1.000 in the baseline, now 0.000`: the scores of a scenario that got worse."""
    return f"{suspect.base:.3f} in the baseline, now {suspect.new:.3f}"


def unmeasured_tests(amount: int) -> str:
    """`2 tests could not be measured`: the number of tests with errors."""
    return f"{count(amount, 'test')} could not be measured"


def first_of_tests(test: Failure) -> str:
    """Returns the id of the first of several tests, and its message."""
    return f"the first one, {test.id}: {test.message}"


def arm_finding(each: MetricCompared) -> str:
    """`new is slower than old`: the result of a comparison of two arms."""
    return f"{each.new_arm} is {each.finding} than {each.base_arm}"


def annotations_left(amount: int, run: Run) -> str:
    """Returns how many annotations of a commit are left out."""
    return f"{amount} more annotations of run {run.id} are in its report"


def arms(ab: ArmsCompared) -> str:
    """`new (backend-b) against old (backend-a), interleaved`: the arms, and the order in which they took turns."""
    base, *others = (f"{each.name} ({each.value})" for each in ab.arms)
    return f"{', '.join(others)} against {base}, {ab.order}"


def lost_arms(ab: ArmsCompared) -> str:
    """Names the arms that failed and are left out of the comparisons. Empty if none failed."""
    failures = [each.failure.partition("\n")[0] for each in ab.arms if each.failure]
    what = "not in these comparisons" if complete_comparisons(ab) else "nothing is compared"
    return f"{what}: {'; '.join(failures)}" if failures else ""


def arm(value: ArmResult) -> str:
    """Returns how many rollouts of an arm are evaluable, its throughput and goodput, and its prefix cache hits."""
    ratio = hit_ratio(value)
    evaluable = sum(value.rollouts[status] for status in EVALUABLE)
    parts = [
        f"{evaluable} of {sum(value.rollouts.values())} rollouts evaluable in {value.blocks} blocks",
        f"{number(per_hour)} rollouts/h" if (per_hour := value.metrics["rollouts_per_hour"]) else "",
        f"{number(per_s)} output tokens/s" if (per_s := value.metrics["output_tokens_per_s"]) else "",
        f"goodput {number(value.goodput.goodput_per_s, 2)} calls/s ({percent(value.goodput.attainment)})" if value.goodput else "",
        f"prefix cache hits {percent(ratio)}" if ratio is not None else "prefix cache hits unknown",
        f"loaded in {value.load_s:.1f} s" if value.load_s is not None else "",
    ]
    return ", ".join(filter(None, parts))


def arm_failure(value: ArmResult) -> str:
    """Returns why an arm failed, in one line. Empty if it did not fail."""
    return value.failure.partition("\n")[0]


def comparison(ab: ArmsCompared, each: MetricCompared) -> str:
    """`tsq 0.900 -> 0.850, -0.050 (-0.090 to -0.010): new is worse`; with more than two arms, each value has the name of its arm."""
    base, new = (f"{name} " if len(ab.arms) > 2 else "" for name in (each.base_arm, each.new_arm))
    values = f"{base}{number(each.base, 3)} -> {new}{number(each.new, 3)}"
    if each.low is None:
        return f"{each.metric:<12} {values}: {each.finding}, {each.reason}"
    is_ratio = "." in each.metric
    estimate, low, high = (f"{value:.3f}" if is_ratio else f"{value:+.3f}" for value in (each.estimate, each.low, each.high))
    shown = f"{each.new_arm} is {each.finding}" if each.finding in (BETTER, FASTER, WORSE, SLOWER) else each.finding
    why = f", {each.reason}" if each.reason else ""
    return f"{each.metric:<12} {values}, {'x' if is_ratio else ''}{estimate} ({low} to {high}, n {each.n}): {shown}{why}"


def difference_of_arms(each: MetricCompared) -> str:
    """`-0.050 (-0.090 to -0.010): worse`: the difference from the first arm, or its ratio for a latency, with the interval and finding."""
    if each.low is None:
        return each.finding
    ratio = "." in each.metric
    estimate, low, high = (f"{value:.2f}" if ratio else f"{value:+.3f}" for value in (each.estimate, each.low, each.high))
    return f"{'x' if ratio else ''}{estimate} ({low} to {high}): {each.finding}"


def undecided(ab: ArmsCompared, scores: Sequence[MetricCompared]) -> str:
    """`polite 1.000 -> 0.000: inconclusive, 5 scenarios were measured, but ...`: scores that are inconclusive for the same reason."""
    several = len(ab.arms) > 2
    values = (
        f"{each.metric} {f'{each.base_arm} ' * several}{number(each.base, 3)} -> {f'{each.new_arm} ' * several}{number(each.new, 3)}"
        for each in scores
    )
    return f"{', '.join(values)}: inconclusive, {scores[0].reason}"


def no_difference(same: int, timings: int) -> str:
    """`no difference is shown for 11 other metrics; 4 timings are inconclusive, report.md says why`: the comparisons left out.

    Empty if it leaves out none. `same` is the number of metrics without a difference, `timings` that of inconclusive timings.
    """
    parts = (
        f"no difference is shown for {count(same, 'other metric')}" if same else "",
        f"{count(timings, 'timing')} {'is' if timings == 1 else 'are'} inconclusive, report.md says why" if timings else "",
    )
    return "; ".join(filter(None, parts))


def cache(run: Run) -> str:
    """Returns how the prefix cache was prepared before each block of rollouts. Empty if it kept what earlier rollouts left in it."""
    state = run.cache
    if state is None or state.policy == CARRY:
        return ""
    if state.policy == PRIMED:
        primed, total = sum(block.primed or 0 for block in state.blocks), sum(block.rollouts for block in state.blocks)
        return f"primed: {primed} of {total} first calls were made before measuring"
    resets = sum(bool(block.reset) for block in state.blocks)
    salted = "".join(f"; prompts {f'of {name} ' if name else ''}were salted, because {why}" for name, why in state.salted.items())
    return f"cold: {resets} of {len(state.blocks)} blocks began with a reset{salted}"
