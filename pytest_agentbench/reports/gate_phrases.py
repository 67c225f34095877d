"""The words of what a gate decided, of arms against each other, and of annotations of a commit."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE, hit_ratio
from pytest_agentbench.records import EVALUABLE
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.phrases import count, number, percent, significant
from pytest_agentbench.reports.view import complete_comparisons, score_of
from pytest_agentbench.runs.results import ArmResult, ArmsCompared, GateResult, InterimLook, MetricCompared, RoundsResult, RuleResult
from pytest_agentbench.runs.run_file import Failure, Run
from pytest_agentbench.stats.decisions import FEWEST, RUN, Suspect
from pytest_agentbench.suites.arms import CARRY, PRIMED

#: Why a scenario is in no comparison with a baseline.
MISSING = {
    "only_new": "not in the baseline",
    "only_base": "only in the baseline",
    "changed": "with another content",
    "unmeasured": "without a measurement",
}

#: Question of a rule -> of what there have to be more.
NARROWER = {"suite": "trials", "population": "scenarios"}

#: What no comparison of the latencies of two runs can rule out; arms that take turns do.
LOAD = "the load may differ"

NO_CLAIM = f"a ranking, no claim: one takes {FEWEST} trials of a scenario on both sides"

BY_CHANCE = "By Benjamini and Hochberg: one in ten of such a list is there by chance. They decide nothing."

LEVEL_OF_LOOKS = "Each look has a level of its own, so that all of them together are as wrong as one at 95 %."

DIFFERENCES = (
    "Paired by scenario. Scores: difference of means. Latencies (ms): ratio, above 1 is slower. "
    "An interval without 0, or without 1, is a difference."
)

FAMILY_OF_ARMS = "Of each metric all comparisons together are wrong in 5 % of runs at most (Holm); their intervals are of 95 % or more."


def gate(result: GateResult, rounds: RoundsResult | None = None) -> str:
    """The verdict of all rules together, after which rounds of trials if they were not fixed, and with what the run was compared."""
    runs = sorted({each.run for each in result.baselines.values()})
    facts = [rounds_of_trials(rounds)] if rounds else []
    facts += [f"compared with {', '.join(runs)}"] if runs else []
    if below := result.tests_below:
        facts.append(f"{count(below, 'test')} below a threshold, which {'does' if below == 1 else 'do'} not count here")
    if not result.decides:
        facts.append("shown only: the tests decide")
    return "; ".join([result.verdict, *facts])


def rounds_of_trials(rounds: RoundsResult) -> str:
    """`the verdict stands after 2 of 5 rounds of trials, 300 rollouts saved`."""
    ran, most = rounds.ran, rounds.most
    if rounds.stands:
        return f"the verdict stands after {ran} of {most} rounds of trials" + (f", {rounds.saved:,} rollouts saved" if rounds.saved else "")
    if ran == most:
        return f"after all {most} rounds of trials"
    if not ran:
        return f"broken off before the second of {most} rounds of trials was over"
    return f"broken off after {ran} of {most} rounds of trials"


def interim_look(rounds: RoundsResult, value: InterimLook, rule: RuleResult) -> str:
    """`2 of 5: banking tsq.mean >= -0.05 vs baseline: INCONCLUSIVE of suite, -0.004 [-0.061, +0.053] at 99.39 %`."""
    level = "" if rule.low is None else f" at {_confidence(rule.confidence)}"
    return f"{value.round} of {rounds.most}: {_decided(rule)}{level}"


def result(rule: RuleResult) -> str:
    """`banking tsq.mean >= -0.05 vs baseline: PASS of suite, -0.004 [-0.021, +0.013]`."""
    return f"{_decided(rule)}{_unseen(rule)}"


def rule(value: RuleResult) -> str:
    """`banking tsq.mean >= -0.05 vs baseline: PASS of suite, -0.004 [-0.021, +0.013] against -0.050; 100 scenarios, ...`."""
    ground = "" if value.estimate is None else f" against {_amount(value, value.threshold)}; {_basis(value)}"
    return f"{_decided(value)}{ground}{_unseen(value)}"


def _decided(rule: RuleResult) -> str:
    text = f"{rule.suite} {rule.rule}: {rule.verdict}"
    if rule.estimate is not None:
        question = f" of {rule.of}" if rule.of and rule.of != RUN else ""  # a rule `of run` has it in its text
        ends = "" if rule.low is None or rule.high is None else f" [{_amount(rule, rule.low)}, {_amount(rule, rule.high)}]"
        text += f"{question}, {_amount(rule, rule.estimate)}{ends}"
    return text


def _unseen(rule: RuleResult) -> str:
    """What the word of a deterministic suite hides if it is wrong; nothing of any other rule."""
    if rule.unseen is None:
        return ""
    return f"; were the suite not deterministic, failures in up to {rule.unseen * 100:.1f} % of rollouts could have gone unseen"


def reason(rule: RuleResult) -> str:
    """Why nothing could be decided. The text is empty of a rule that was decided."""
    undecided = f"the interval holds the threshold: more {NARROWER.get(rule.of, 'trials or scenarios')} make it narrower"
    return rule.reason or (undecided if rule.verdict == "INCONCLUSIVE" else "")


def power(rule: RuleResult) -> str:
    """What such a run could have found, and with which margins it passes. The text is empty if that is not known."""
    if rule.detectable is None:
        return ""
    if not rule.vs_baseline:
        return f"a distance from the limit of {_reach(rule, rule.detectable)} is found by such a run 4 times out of 5"
    if rule.width is not None and rule.floor is not None and rule.detectable >= rule.width:
        return "such a run is too small to find any change"
    margin = rule.passable
    unchanged = f"; with a margin of {_reach(rule, margin)} it passes as often when nothing has changed" if margin is not None else ""
    return f"a change of {_reach(rule, rule.detectable)} is found by such a run 4 times out of 5{unchanged}"


def least_margin(rule: RuleResult) -> str:
    """The smallest margin with which a run of this size can pass. The text is empty if the rule's own is larger, or could be decided."""
    floor, undecided = rule.floor, rule.verdict == "INCONCLUSIVE" and not rule.reason
    if rule.detectable is None or floor is None or not undecided or not rule.vs_baseline or not 0 < abs(rule.threshold) <= floor:
        return ""
    return f"a run of this size cannot pass with a margin below {floor:.3f}, whatever it measures"


def p_worse(rule: RuleResult) -> str:
    """The p-value of the scores having got worse. The text is empty if it was not computed."""
    return "" if rule.p_worse is None else f"p of worse, the trials of each scenario dealt out anew: {rule.p_worse:.3g}"


def left_out_scenarios(rule: RuleResult) -> str:
    """`scenarios left out: 3 not in the baseline`. The text is empty if none was."""
    parts = ", ".join(f"{amount} {what}" for name, what in MISSING.items() if (amount := getattr(rule.missing, name)))
    return f"scenarios left out: {parts}" if parts else ""


def change(rule: RuleResult, suspect: Suspect, suite: str) -> tuple[str | Code, ...]:
    """`banking-017 tsq 1.000 -> 0.000`; with the name of its suite, if there are several: `banking-017 banking tsq ...`."""
    return Code(suspect.scenario, "scenario"), f" {f'{suite} ' if suite else ''}{score_of(rule)} {suspect.base:.3f} -> {suspect.new:.3f}"


def claim(rule: RuleResult, suspect: Suspect, suite: str) -> Text:
    """`banking-017 tsq 1.000 -> 0.000 (p 0.002)`."""
    return (*change(rule, suspect, suite), f" (p {suspect.p:.3g})")


def _basis(rule: RuleResult) -> str:
    new, base = rule.trials
    if rule.method == "a fact":
        return f"a fact about {new} rollouts"
    what = "calls" if rule.kind == "latency" and not rule.rule.startswith("rollout.") else "trials"
    both = f"{new} and {base}" if rule.vs_baseline else f"{new}"
    load = f"; {LOAD}" if rule.kind == "latency" and rule.vs_baseline else ""
    method = rule.method if rule.low is None else f"{_confidence(rule.confidence)} {rule.method}"
    return f"{rule.n} scenarios, {both} {what}, {method}{load}"


def _confidence(confidence: float) -> str:
    """`95 %`; `99.39 %` of a look before the last one."""
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
    """`FAIL: 0.412 [0.371, 0.453]; too few scenarios`: what became of a rule whose text stands beside it."""
    ends = "" if rule.low is None or rule.high is None else f" [{rule.low:.4g}, {rule.high:.4g}]"
    value = "nothing measured" if rule.estimate is None else f"{rule.estimate:.4g}{ends}"
    return f"{rule.verdict}: {'; '.join(filter(None, (value, rule.reason)))}"


def fall(suspect: Suspect) -> str:
    """`1.000 in the baseline, now 0.000`."""
    return f"{suspect.base:.3f} in the baseline, now {suspect.new:.3f}"


def unmeasured_tests(amount: int) -> str:
    """`2 tests could not be measured`."""
    return f"{count(amount, 'test')} could not be measured"


def first_of_tests(test: Failure) -> str:
    """The first of several tests, and what it said."""
    return f"the first one, {test.id}: {test.message}"


def arm_finding(each: MetricCompared) -> str:
    """`new is slower than old`."""
    return f"{each.new_arm} is {each.finding} than {each.base_arm}"


def annotations_left(amount: int, run: Run) -> str:
    """What a commit has no room for."""
    return f"{amount} more annotations of run {run.id}: its report names them"


def arms(ab: ArmsCompared) -> str:
    """`new (backend-b) against old (backend-a), interleaved`."""
    base, *others = (f"{each.name} ({each.value})" for each in ab.arms)
    return f"{', '.join(others)} against {base}, {ab.order}"


def lost_arms(ab: ArmsCompared) -> str:
    """Arms that are not there, and what is not compared for it. The text is empty if all is well."""
    failures = [each.failure.partition("\n")[0] for each in ab.arms if each.failure]
    what = "not in these comparisons" if complete_comparisons(ab) else "nothing is compared"
    return f"{what}: {'; '.join(failures)}" if failures else ""


def arm(value: ArmResult) -> str:
    """What ran of an arm, how fast, and how much of its prompts was cached."""
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
    """Why an arm is not there, or is gone. The text is empty if all was well."""
    return value.failure.partition("\n")[0]


def comparison(ab: ArmsCompared, each: MetricCompared) -> str:
    """`tsq 0.900 -> 0.850, -0.050 (-0.090 to -0.010): new is worse`; of more than two arms each value has the name of its own."""
    base, new = (f"{name} " if len(ab.arms) > 2 else "" for name in (each.base_arm, each.new_arm))
    values = f"{base}{number(each.base, 3)} -> {new}{number(each.new, 3)}"
    if each.low is None:
        return f"{each.metric:<12} {values}: {each.finding}, {each.reason}"
    is_ratio = "." in each.metric
    estimate, low, high = (f"{value:.3f}" if is_ratio else f"{value:+.3f}" for value in (each.estimate, each.low, each.high))
    shown = f"{each.new_arm} is {each.finding}" if each.finding in (BETTER, FASTER, WORSE, SLOWER) else each.finding
    why = f", {each.reason}" if each.reason else ""
    return f"{each.metric:<12} {values}, {'x' if is_ratio else ''}{estimate} ({low} to {high}, n {each.n}): {shown}{why}"


def no_difference(left: int) -> str:
    """`of 11 other figures no difference is shown`. The text is empty if all are shown."""
    return f"of {left} other figures no difference is shown" if left else ""


def cache(run: Run) -> str:
    """How the prefix cache was made ready. The text is empty if it was left as it is."""
    state = run.cache
    if state is None or state.policy == CARRY:
        return ""
    if state.policy == PRIMED:
        primed, total = sum(block.primed or 0 for block in state.blocks), sum(block.rollouts for block in state.blocks)
        return f"primed: {primed} of {total} first calls were made before measuring"
    resets = sum(not block.salt for block in state.blocks)
    salted = "".join(f"; prompts {f'of {name} ' if name else ''}were salted, because {why}" for name, why in state.salted.items())
    return f"cold: {resets} of {len(state.blocks)} blocks began with a reset{salted}"
