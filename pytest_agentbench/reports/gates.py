"""How reports say what a gate found: each rule with estimate, interval, threshold, numbers and the smallest change it could have found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_agentbench.reports.words import number, score_of, significant
from pytest_agentbench.runs.verdicts import GateResult, RoundsResult, RuleResult
from pytest_agentbench.stats.decisions import RUN
from pytest_agentbench.stats.multiple import FEWEST, Suspect

SHOWN = 10  # scenarios that got worse

#: What no comparison of the latencies of two runs can rule out; arms that take turns do.
LOAD = "the load may differ"


def gate_text(gate: GateResult, rounds: RoundsResult | None = None) -> str:
    """The verdict of all rules together, after which rounds of trials where they were not fixed, and with what the run was compared."""
    runs = sorted({each.run for each in gate.baselines.values()})
    facts = [rounds_text(rounds)] if rounds else []
    facts += [f"compared with {', '.join(runs)}"] if runs else []
    if below := gate.tests_below:
        facts.append(f"{below} test{'s' * (below > 1)} below a threshold, which {'does' if below == 1 else 'do'} not count here")
    if not gate.decides:
        facts.append("shown only: the tests decide")
    return "; ".join([gate.verdict, *facts])


def rounds_text(rounds: RoundsResult) -> str:
    """`the verdict stands after 2 of 5 rounds of trials, 300 rollouts saved`."""
    ran, most = rounds.ran, rounds.most
    if rounds.stands:
        return f"the verdict stands after {ran} of {most} rounds of trials" + (f", {rounds.saved:,} rollouts saved" if rounds.saved else "")
    if ran == most:
        return f"after all {most} rounds of trials"
    return (
        f"broken off after {ran} of {most} rounds of trials" if ran else f"broken off before the second of {most} rounds of trials was over"
    )


def look_lines(rounds: RoundsResult | None) -> Iterator[str]:
    """`2 of 5: banking tsq.mean >= -0.05 vs baseline: INCONCLUSIVE of suite, -0.004 [-0.061, +0.053] at 99.39 %`, of each look and rule."""
    for look in rounds.looks if rounds else ():
        for rule in look.rules:
            level = "" if rule.low is None else f" at {_percent(rule.confidence)}"
            yield f"{look.round} of {rounds.most if rounds else 0}: {_result(rule)}{level}"


def rule_text(rule: RuleResult) -> str:
    """`banking tsq.mean >= -0.05 vs baseline: PASS of suite, -0.004 [-0.021, +0.013] against -0.050; 100 scenarios, ...`"""
    ground = "" if rule.estimate is None else f" against {_value(rule, rule.threshold)}; {_numbers(rule)}"
    return f"{_result(rule)}{ground}{_unseen(rule)}"


def result_text(rule: RuleResult) -> str:
    """`banking tsq.mean >= -0.05 vs baseline: PASS of suite, -0.004 [-0.021, +0.013]`."""
    return f"{_result(rule)}{_unseen(rule)}"


def _result(rule: RuleResult) -> str:
    result = f"{rule.suite} {rule.rule}: {rule.verdict}"
    if rule.estimate is not None:
        interval = "" if rule.low is None or rule.high is None else f" [{_value(rule, rule.low)}, {_value(rule, rule.high)}]"
        result += f"{_question(rule)}, {_value(rule, rule.estimate)}{interval}"
    return result


def _unseen(rule: RuleResult) -> str:
    """What the word of a deterministic suite hides if it is wrong; of no other rule anything."""
    if rule.unseen is None:
        return ""
    return f"; were the suite not deterministic, failures in up to {rule.unseen * 100:.1f} % of rollouts could have gone unseen"


def _question(rule: RuleResult) -> str:
    """Which one was answered; empty where there is only one."""
    return f" of {rule.of}" if rule.of and rule.of != RUN else ""  # a rule `of run` has it in its text


def worst_first(rules: Iterable[RuleResult]) -> list[RuleResult]:
    """What failed, what is open, what holds; each in the order in which it was asked."""
    order = {"FAIL": 0, "INCONCLUSIVE": 1}
    return sorted(rules, key=lambda rule: order.get(rule.verdict, 2))


def reason_text(rule: RuleResult) -> str:
    """Why nothing could be decided; empty of a rule that was."""
    undecided = f"the interval holds the threshold: more {NARROWER.get(rule.of, 'trials or scenarios')} make it narrower"
    return rule.reason or (undecided if rule.verdict == "INCONCLUSIVE" else "")


def detail_lines(rule: RuleResult) -> Iterator[str]:
    """Why nothing could be decided, what may have changed besides, and what could have been found."""
    if reason := reason_text(rule):
        yield reason
    yield from _power(rule)
    if rule.p_worse is not None:
        yield f"p of worse, the trials of each scenario dealt out anew: {rule.p_worse:.3g}"
    if missing := ", ".join(f"{count} {what}" for name, what in MISSING.items() if (count := getattr(rule.missing, name))):
        yield f"scenarios left out: {missing}"
    yield from rule.notes


#: Question -> of what there have to be more.
NARROWER = {"suite": "trials", "population": "scenarios"}


def _power(rule: RuleResult) -> Iterator[str]:
    """What such a run could have found, and with which margins it passes."""
    if rule.detectable is None:
        return
    passable, floor = rule.passable, rule.floor
    if not rule.vs_baseline:
        yield f"a distance from the limit of {_reach(rule, rule.detectable)} is found by such a run 4 times out of 5"
    elif rule.width is not None and floor is not None and rule.detectable >= rule.width:
        yield "such a run is too small to find any change"
    else:
        unchanged = (
            f"; with a margin of {_reach(rule, passable)} it passes as often when nothing has changed" if passable is not None else ""
        )
        yield f"a change of {_reach(rule, rule.detectable)} is found by such a run 4 times out of 5{unchanged}"
    if floor is not None and rule.verdict == "INCONCLUSIVE" and rule.vs_baseline and 0 < abs(rule.threshold) <= floor and not rule.reason:
        yield f"a run of this size cannot pass with a margin below {floor:.3f}, whatever it measures"


MISSING = {
    "only_new": "not in the baseline",
    "only_base": "only in the baseline",
    "changed": "with another content",
    "unmeasured": "without a measurement",
}


def claims_of(rule: RuleResult) -> list[Suspect]:
    """Scenarios that have got worse, the surest first; one in ten of them is there by chance."""
    return [each for each in rule.suspects if each.claimed]


def ranking_of(rule: RuleResult) -> list[Suspect]:
    """Scenarios whose scores are lower, and that is all that is known."""
    return [each for each in rule.suspects if not each.claimed]


NO_CLAIM = f"a ranking, no claim: one takes {FEWEST} trials of a scenario on both sides"


def change_text(metric: str, suspect: Suspect) -> str:
    """`banking-017 tsq 1.000 -> 0.000`."""
    return f"{suspect.scenario} {metric} {suspect.base:.3f} -> {suspect.new:.3f}"


def claim_lines(gate: GateResult) -> Iterator[str]:
    """Scenarios that have got worse, the surest first."""
    for rule in gate.rules:
        claims, score = claims_of(rule), score_of(rule)
        for each in claims[:SHOWN]:
            yield f"{change_text(score, each)} (p {each.p:.3g})"
        if (more := len(claims) - SHOWN) > 0:
            yield f"{more} more of {score}, in run.json"


def ranking_lines(gate: GateResult) -> Iterator[str]:
    """Scenarios whose scores are lower, those that fell most first."""
    for rule in gate.rules:
        yield from (change_text(score_of(rule), each) for each in ranking_of(rule))


def _numbers(rule: RuleResult) -> str:
    new, base = rule.trials
    if rule.method == "a fact":
        return f"a fact about {new} rollouts"
    what = "calls" if rule.kind == "latency" and not rule.rule.startswith("rollout.") else "trials"
    both = f"{new} and {base}" if rule.vs_baseline else f"{new}"
    load = f"; {LOAD}" if rule.kind == "latency" and rule.vs_baseline else ""
    return f"{rule.n} scenarios, {both} {what}, {_method(rule)}{load}"


def _method(rule: RuleResult) -> str:
    return rule.method if rule.low is None else f"{_percent(rule.confidence)} {rule.method}"


def _percent(confidence: float) -> str:
    """`95 %`; `99.39 %` of a look before the last one."""
    return f"{confidence * 100:.4g} %"


def _value(rule: RuleResult, value: float) -> str:
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
    return _value(replace(rule, vs_baseline=rule.kind == "latency" and rule.vs_baseline), reach).lstrip("+")
