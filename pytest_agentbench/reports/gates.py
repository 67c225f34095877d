"""How reports say what a gate found: each rule with estimate, interval, threshold, numbers and the smallest change it could have found."""

from __future__ import annotations

from collections.abc import Iterator

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
    said = f"{rule['suite']} {rule['rule']}: {rule['verdict']}"
    if rule["estimate"] is not None:
        interval = "" if rule["low"] is None else f" [{_value(rule, rule['low'])}, {_value(rule, rule['high'])}]"
        said += f", {_value(rule, rule['estimate'])}{interval} against {_value(rule, rule['threshold'])}; {_numbers(rule)}"
    return said


def detail_lines(rule: Json) -> Iterator[str]:
    """Why nothing could be decided, what may have changed besides, and what could have been found."""
    if rule["reason"]:
        yield rule["reason"]
    elif rule["verdict"] == "INCONCLUSIVE":
        yield "the interval holds the threshold: more trials or scenarios make it narrower"
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


def suspect_lines(gate: Json) -> Iterator[str]:
    """Scenarios that may have got worse, the surest first."""
    for rule in gate["rules"]:
        score = score_of(rule)
        for each in rule["suspects"][:SHOWN]:
            yield f"{each['scenario']} {score} {each['base']:.3f} -> {each['new']:.3f} (p {each['p']:.3g})"
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
