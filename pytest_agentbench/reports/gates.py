"""How reports say what a gate found: each rule with estimate, interval, threshold, numbers and the smallest change it could have found."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.records import Json
from pytest_agentbench.reports.wording import number

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
    """`banking tsq >= -0.03 vs baseline: PASS, -0.004 [-0.021, +0.013] against -0.030; 100 scenarios, ...`"""
    said = f"{rule['suite']} {rule['rule']}: {rule['verdict']}"
    if rule["estimate"] is not None:
        interval = "" if rule["low"] is None else f" [{_value(rule, rule['low'])}, {_value(rule, rule['high'])}]"
        said += f", {_value(rule, rule['estimate'])}{interval} against {_value(rule, rule['threshold'])}; {_numbers(rule)}"
    if rule.get("unseen") is not None:  # runs of older versions have none
        said += f"; were the suite not deterministic, failures in up to {rule['unseen'] * 100:.1f} % of rollouts could have gone unseen"
    return said


def detail_lines(rule: Json) -> Iterator[str]:
    """Why nothing could be decided, what may have changed besides, and what could have been found."""
    if rule["reason"]:
        yield rule["reason"]
    elif rule["verdict"] == "INCONCLUSIVE":
        yield f"the interval holds the threshold: more {NARROWER.get(rule.get('of', ''), 'trials or scenarios')} make it narrower"
    yield from _power(rule)
    if (p := rule.get("p_worse")) is not None:
        yield f"p of worse, the trials of each scenario dealt out anew: {p:.3g}"
    if missing := ", ".join(f"{count} {what}" for name, what in MISSING.items() if (count := rule["missing"][name])):
        yield f"scenarios left out: {missing}"
    yield from rule["notes"]


#: Question -> of what there have to be more.
NARROWER = {"suite": "trials", "population": "scenarios"}


def _power(rule: Json) -> Iterator[str]:
    """What such a run could have found, and with which margins it passes."""
    if rule["detectable"] is None:
        return
    passable, floor = rule.get("passable"), rule.get("floor")  # runs of older versions have none
    if not rule["vs_baseline"]:
        yield f"a distance from the limit of {_reach(rule, rule['detectable'])} is found by such a run 4 times out of 5"
    elif rule["kind"] == "score" and floor is not None and rule["detectable"] >= 1:  # scores from 0 to 1 cannot change by more
        yield "such a run is too small to find any change"
    else:
        unchanged = (
            f"; with a margin of {_reach(rule, passable)} it passes as often when nothing has changed" if passable is not None else ""
        )
        yield f"a change of {_reach(rule, rule['detectable'])} is found by such a run 4 times out of 5{unchanged}"
    if floor is not None and rule["verdict"] == "INCONCLUSIVE" and 0 < -rule["threshold"] <= floor and not rule["reason"]:
        yield f"a run of this size cannot pass with a margin below {floor:.3f}, whatever it measures"


MISSING = {
    "only_new": "not in the baseline",
    "only_base": "only in the baseline",
    "changed": "with another content",
    "unmeasured": "without a measurement",
}


def suspect_lines(gate: Json) -> Iterator[str]:
    """Scenarios that may have got worse, the surest first."""
    for rule in gate["rules"]:
        metric = rule["rule"].split()[0]
        for each in rule["suspects"][:SHOWN]:
            yield f"{each['scenario']} {metric} {each['base']:.3f} -> {each['new']:.3f} (p {each['p']:.3g})"
        if (more := len(rule["suspects"]) - SHOWN) > 0:
            yield f"{more} more of {metric}, in run.json"


def _numbers(rule: Json) -> str:
    new, base = rule["trials"]
    if rule["method"] == "a fact":
        return f"a fact about {new} rollouts"
    what = "calls" if rule["kind"] == "latency" and not rule["rule"].startswith("rollout.") else "trials"
    both = f"{new} and {base}" if rule["vs_baseline"] else f"{new}"
    of = f"of {rule['of']}: " if rule.get("of") else ""  # runs of older versions have none
    return f"{of}{rule['n']} scenarios, {both} {what}, {_method(rule)}"


def _method(rule: Json) -> str:
    return rule["method"] if rule["low"] is None else f"{rule['confidence'] * 100:g} % {rule['method']}"


def _value(rule: Json, value: float) -> str:
    kind, versus = rule["kind"], rule["vs_baseline"]
    if versus and kind != "score":
        return f"{(value - 1) * 100:+.1f} %"
    if kind in ("share", "goodput"):
        return f"{value * 100:.2f} %"
    if kind == "latency":
        return f"{number(value)} ms"
    return f"{value:+.3f}" if versus else number(value, 3 if kind == "score" else 1)


def _reach(rule: Json, reach: float) -> str:
    return _value({**rule, "vs_baseline": rule["kind"] == "latency" and rule["vs_baseline"]}, reach).lstrip("+")
