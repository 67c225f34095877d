"""How reports say what a gate found: each rule with estimate, interval, threshold, numbers and the smallest change it could have found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_agentbench.records import Json
from pytest_agentbench.reports.wording import number, score_of

SHOWN = 10  # suspects


def gate_text(gate: Json) -> str:
    """The verdict of all rules together, and with what the run was compared."""
    runs = sorted({each["run"] for each in gate["baselines"].values()})
    facts = [f"compared with {', '.join(runs)}"] if runs else []
    if below := gate["tests_below"]:
        facts.append(f"{below} test{'s' * (below > 1)} below a threshold, which {'does' if below == 1 else 'do'} not count here")
    if not gate["decides"]:
        facts.append("shown only: the tests decide")
    return "; ".join([gate["verdict"], *facts])


def rule_text(rule: Json) -> str:
    """`banking tsq.mean >= -0.03 vs baseline: PASS, -0.004 [-0.021, +0.013] against -0.030; 100 scenarios, ...`"""
    ground = "" if rule["estimate"] is None else f" against {_value(rule, rule['threshold'])}; {_numbers(rule)}"
    return f"{result_text(rule)}{ground}"


def result_text(rule: Json) -> str:
    """`banking tsq.mean >= -0.03 vs baseline: PASS, -0.004 [-0.021, +0.013]`."""
    result = f"{rule['suite']} {rule['rule']}: {rule['verdict']}"
    if rule["estimate"] is not None:
        interval = "" if rule["low"] is None else f" [{_value(rule, rule['low'])}, {_value(rule, rule['high'])}]"
        result += f", {_value(rule, rule['estimate'])}{interval}"
    return result


def worst_first(rules: Iterable[Json]) -> list[Json]:
    """What failed, what is open, what holds; each in the order in which it was asked."""
    order = {"FAIL": 0, "INCONCLUSIVE": 1}
    return sorted(rules, key=lambda rule: order.get(rule["verdict"], 2))


def reason_text(rule: Json) -> str:
    """Why nothing could be decided; empty of a rule that was."""
    undecided = "the interval holds the threshold: more trials or scenarios make it narrower"
    return rule["reason"] or (undecided if rule["verdict"] == "INCONCLUSIVE" else "")


def detail_lines(rule: Json) -> Iterator[str]:
    """Why nothing could be decided, what may have changed besides, and what could have been found."""
    if reason := reason_text(rule):
        yield reason
    if rule["detectable"] is not None:
        what = "a change" if rule["vs_baseline"] else "a distance from the limit"
        greater = rule["method"].endswith(("adjusted t", "tango")) and rule["detectable"] >= 1  # than scores from 0 to 1 can change
        yield (
            f"{what} of {_reach(rule)} is found by such a run 4 times out of 5"
            if not greater
            else "such a run is too small to find any change"
        )
    if rule["mcnemar"] is not None:
        yield f"McNemar's p of worse: {rule['mcnemar']:.3f}"
    if missing := ", ".join(f"{count} {what}" for name, what in MISSING.items() if (count := rule["missing"][name])):
        yield f"scenarios left out: {missing}"
    yield from rule["notes"]


MISSING = {
    "only_new": "not in the baseline",
    "only_base": "only in the baseline",
    "changed": "with another content",
    "unmeasured": "without a measurement",
}


def suspects_of(gate: Json) -> Iterator[tuple[str, Json]]:
    """(metric, scenario that may have got worse), the surest of each metric first."""
    return ((score_of(rule), each) for rule in gate["rules"] for each in rule["suspects"])


def change_text(metric: str, suspect: Json) -> str:
    """`banking-017 tsq 1.000 -> 0.000`."""
    return f"{suspect['scenario']} {metric} {suspect['base']:.3f} -> {suspect['new']:.3f}"


def suspect_lines(gate: Json) -> Iterator[str]:
    """Scenarios that may have got worse, the surest first."""
    for rule in gate["rules"]:
        score = score_of(rule)
        for each in rule["suspects"][:SHOWN]:
            yield f"{change_text(score, each)} (p {each['p']:.3g})"
        if (more := len(rule["suspects"]) - SHOWN) > 0:
            yield f"{more} more of {score}, in run.json"


def _numbers(rule: Json) -> str:
    new, base = rule["trials"]
    if rule["method"] == "a fact":
        return f"a fact about {new} rollouts"
    what = "calls" if rule["kind"] == "latency" and not rule["rule"].startswith("rollout.") else "trials"
    both = f"{new} and {base}" if rule["vs_baseline"] else f"{new}"
    return f"{rule['n']} scenarios, {both} {what}, {rule['confidence'] * 100:g} % {rule['method']}"


def _value(rule: Json, value: float) -> str:
    kind, versus = rule["kind"], rule["vs_baseline"]
    if versus and kind != "score":
        return f"{(value - 1) * 100:+.1f} %"
    if kind in ("share", "goodput"):
        return f"{value * 100:.2f} %"
    if kind == "latency":
        return f"{number(value)} ms"
    return f"{value:+.3f}" if versus else number(value, 3 if kind == "score" else 1)


def _reach(rule: Json) -> str:
    reach = rule["detectable"]
    return _value({**rule, "vs_baseline": rule["kind"] == "latency" and rule["vs_baseline"]}, reach).lstrip("+")
