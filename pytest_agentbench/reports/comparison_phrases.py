"""The sentences of the commands `compare`, `trend` and `calibrate`, and of reports in the formats of other tools, such as AIPerf."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE
from pytest_agentbench.gate.repeats import ScoreNoise
from pytest_agentbench.gate.run_comparison import ScenarioResult
from pytest_agentbench.gate.trend import ExcludedRun, Point, Regression, SetupChange, TrendRun, TrendSeries
from pytest_agentbench.reports import gate_phrases, suite_phrases
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.phrases import general
from pytest_agentbench.runs.results import Changed, SuiteResult
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision

VALUE = 60  # maximum characters of a setup value

SHORT = 10  # characters of a commit hash

SHOWN = 5  # scenarios with varying scores that are named

#: Part of the setup -> text for a value that one of the runs does not have.
NOTHING = {"packages": "not installed", **dict.fromkeys(("code", "model", "hardware", "host"), "unknown")}

#: Verdict -> word for a difference of scores, and for a ratio of latencies.
OF_SCORES, OF_SPEEDS = {PASS: BETTER, FAIL: WORSE}, {PASS: FASTER, FAIL: SLOWER}

NO_REGRESSION = "No regression was found."

NOTHING_COMPARED = "Nothing can be compared: no two runs measured scenarios with the same content."

NOTHING_MEASURED = "Nothing was measured: no run has a rollout that counts."

CHARTS = (
    "Bars are 95 % intervals of single runs. A dashed line marks a change of setup, a red dot a run that got worse, "
    "and a green ring a run that fixed it."
)

MEAN_SCORE = "mean score"

IN_TIME_ORDER = "runs in time order"

OF_RUN = "of this run"


def how_to_read(reference: str) -> Text:
    """Explains the rows `vs REFERENCE` of a comparison of runs: their differences, intervals and verdicts."""
    return (
        *(
            "Rows ",
            Code(f"vs {reference}"),
            " show the difference of scores and pass rates, or the ratio of latencies, with its interval. ",
        ),
        "If no word such as worse follows, no difference is shown. ",
        "For each row, all comparisons together are wrong in at most 5 % of cases (Holm).",
    )


def setup_change(changed: Changed, names: Sequence[str]) -> str:
    """`shop.temperature: 0.0 -> 0.6 (short, four)`: a change of the setup against the reference, and the runs that have it."""
    return f"{change(changed)} ({', '.join(names)})"


def change(changed: Changed) -> str:
    """`shop.temperature: 0.0 -> 0.6`: a change of the setup. Lists show only the differing items, prompts and tools only hashes."""
    old, new = changed.old, changed.new
    if changed.part in ("prompts", "tools") and isinstance(old, str) and isinstance(new, str):
        return f"{changed.path}: text changed (hash {old} -> {new})"
    if isinstance(old, list) and isinstance(new, list):
        return f"{changed.path}: {_list_change(old, new)}"
    nothing = NOTHING.get(changed.part, "unset")
    return f"{changed.path}: {_value(old, nothing)} -> {_value(new, nothing)}"


def _list_change(old: Sequence[Any], new: Sequence[Any]) -> str:
    """`32768 -> 65536`: the differing items of two lists."""
    before, after = ([_value(each, "null") for each in every] for every in (old, new))
    places = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return "; ".join(
        f"{' '.join(before[a:b]) or 'nothing'} -> {' '.join(after[c:d]) or 'nothing'}" for tag, a, b, c, d in places if tag != "equal"
    )


def _value(value: Any, nothing: str) -> str:
    if value is None:
        return nothing
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= VALUE else f"{text[: VALUE - 3]}..."


def unknown_setup(names: Sequence[str]) -> str:
    """Names the runs whose setup is unknown."""
    return f"the setup is not recorded, because another tool made the run: {', '.join(names)}"


def same_setup(parts: Sequence[str], of: Sequence[str]) -> str:
    """Names the `parts` of the setup that are equal in all runs, or returns `everything` if these are `of`, all parts of the setup."""
    return "everything" if [*parts] == [*of] else ", ".join(parts)


def against(reference: str) -> str:
    """Returns the title of a row that contains the differences from the reference."""
    return f"  vs {reference}"


def difference(decision: Decision | None) -> str:
    """`-0.347 worse`: a difference of scores and its verdict. Empty without a comparison or an interval."""
    return _estimate(decision, "+.3f", OF_SCORES)


def difference_ends(decision: Decision | None) -> str:
    """`-1.000 to +0.211`: the interval of a difference of scores. Empty without a comparison or an interval."""
    return _ends(decision, "+.3f")


def ratio(decision: Decision | None) -> str:
    """`1.32 slower`: a ratio of latencies and its verdict. Empty without a comparison or an interval."""
    return _estimate(decision, ".2f", OF_SPEEDS)


def ratio_ends(decision: Decision | None) -> str:
    """`1.20 to 1.45`: the interval of a ratio of latencies. Empty without a comparison or an interval."""
    return _ends(decision, ".2f")


def _estimate(decision: Decision | None, form: str, words: Mapping[str, str]) -> str:
    if decision is None or decision.estimate is None or decision.low is None:
        return ""
    return f"{decision.estimate:{form}} {words.get(decision.verdict, '')}".rstrip()


def _ends(decision: Decision | None, form: str) -> str:
    if decision is None or decision.estimate is None or decision.low is None:
        return ""
    return f"{decision.low:{form}} to {decision.high:{form}}"


def scenarios_that_differ(group: str, score: str, shown: int, total: int, *, with_trials: bool) -> str:
    """Returns the title of a table of scenarios whose results differ between runs."""
    amount = f"the first {shown} of {total}, --format markdown lists all" if shown < total else f"{total}"
    return f"{group}: scenarios that differ ({amount}), {score}{' and how many trials passed' * with_trials}"


def scenario_result(result: ScenarioResult) -> str:
    """`0.727 1/1`: a score, and the number of passed trials if the score has a threshold."""
    return f"{result.mean:.3f}" if result.passed is None else f"{result.mean:.3f} {result.passed}/{result.trials}"


def same_scores(group: str, scores: Sequence[str]) -> str:
    """Names the scores that each scenario of a suite has with the same value in all compared runs. Empty if there are none."""
    return f"all compared scenarios of {group} have the same {', '.join(scores)} in all runs" if scores else ""


def scenarios_left_out(group: str, reference: str, name: str, counts: Mapping[str, int]) -> str:
    """Returns how many scenarios of a run are not compared with the reference, and why. Empty if all are compared."""
    words = {**gate_phrases.MISSING, "only_new": f"only in {name}", "only_base": f"only in {reference}"}
    parts = ", ".join(f"{amount} {words[why]}" for why, amount in counts.items() if amount)
    return f"scenarios of {group} left out of the comparison of {name} with {reference}: {parts}" if parts else ""


def retried(group: str, name: str, suite: SuiteResult) -> str:
    """Compares the mean scores of a run's rollouts with several attempts and of those with one. Empty if none had several."""
    return f"{group} of {name}: {text}" if (text := suite_phrases.retried(suite)) else ""


def period(runs: Sequence[TrendRun]) -> str:
    """`3 runs, 2026-03-01T05:30:00 to 2026-03-03T05:30:00`: the runs of a history, and when the first and the last ended."""
    return f"{len(runs)} runs, {runs[0].finished_at} to {runs[-1].finished_at}" if runs[1:] else f"One run, {runs[0].finished_at}"


def regression(group: str, series: TrendSeries, each: Regression) -> str:
    """`shop tsq.mean -0.120 [-0.180, -0.060] in n1, against n0`: a metric that got worse in run n1."""
    return f"{group} {series.metric} {step(series, each)} in {each.run}, against {each.reference}"


def regression_state(each: Regression) -> str:
    """Returns the kind and the state of a regression, for example `new, open`."""
    return f"{each.kind}, {each.state}"


def step(series: TrendSeries, each: Regression) -> str:
    """`-0.120 [-0.180, -0.060]`: by how much a score got worse, or `x1.32 [1.20, 1.45]` for a latency."""
    if series.unit:
        return f"x{each.estimate:.2f} [{each.low:.2f}, {each.high:.2f}]"
    return f"{each.estimate:+.3f} [{each.low:+.3f}, {each.high:+.3f}]"


def run_and_commit(run: str, commit: str | None) -> Text:
    """Returns a run and the commit that it measured."""
    return Code(run, "run"), " ", commit_code(commit)


def commit_code(commit: str | None) -> Code:
    """Returns the first characters of a commit hash as a name that pages link, or `no commit`."""
    return Code(commit_of(commit), "commit" if commit else "name")


def commit_of(commit: str | None) -> str:
    """Returns the first characters of a commit hash, or `no commit`."""
    return commit[:SHORT] if commit else "no commit"


def setup_of_run(each: SetupChange, commit: str | None) -> str:
    """`n3, 0123456789: agent, prompts`: a run, its commit, and the parts of the setup that changed since the previous run."""
    return f"{each.run}, {commit_of(commit)}: {', '.join(each.parts)}"


def excluded(each: ExcludedRun) -> Text:
    """Returns a run that is left out, and why."""
    return Code(each.source), f": {each.why}"


def last_value(point: Point) -> str:
    """`latest 0.9 [0.85, 0.95]`: the value of a metric in the latest run, with its interval."""
    return f"latest {_point(point)}"


def point(value: Point, commit: str | None, changed: Sequence[str]) -> str:
    """`n3, 0123456789: 0.9 [0.85, 0.95]; changed: agent, prompts`: a metric in one run, and how the setup changed there."""
    return f"{value.run}, {commit_of(commit)}: {_point(value)}" + (f"; changed: {', '.join(changed)}" if changed else "")


def _point(value: Point) -> str:
    interval = "" if value.low is None or value.high is None else f" [{general(value.low)}, {general(value.high)}]"
    return f"{general(value.value)}{interval}"


def peer_table(title: str, of: str) -> str:
    """`AIPerf 0.13, from the raw records of this run`: the title of a table in another tool's format."""
    return f"{title}, from the raw records {of}"


def of_arm(arm: str) -> str:
    """Returns which calls a table in another tool's format is about: those of an arm (one side of an A/B session)."""
    return f"of arm {arm}, without the time of other arms' blocks"


def suggested_by(group: str, runs: Sequence[str]) -> str:
    """Names the runs from which thresholds are suggested for a suite."""
    return f"{group}: suggested by {len(runs)} runs, {', '.join(runs)}"


def not_the_same(part: str) -> str:
    """Warns that the runs from which thresholds are suggested differ in a part of their setup."""
    return f"these runs differ in their {part}, so the numbers include its effect"


def unlimited(score: str) -> str:
    """Returns why no threshold is suggested for a score."""
    return f"no suggestion for {score}, because its scale lacks a least or a greatest value"


def noise(score: str, value: ScoreNoise, *, holds: bool) -> Iterator[str]:
    """Yields how a score varied between runs of an unchanged setup, and which verdicts a gate rule with each margin would give."""
    yield f"{score}: means {', '.join(f'{mean:.3f}' for mean in value.means)}, {max(value.means) - min(value.means):.3f} apart"
    most = ", ".join(f"{each.scenario} {each.low:.2f} to {each.high:.2f}" for each in value.flaky[:SHOWN])
    named = f": {most}{', ...' * (len(value.flaky) > SHOWN)}" if most else ""
    yield f"{len(value.flaky)} of {value.scenarios} scenarios did not always get the same score{named}"
    yield from (_margin(margin, verdicts, value.pairs) for margin, verdicts in value.verdicts.items())
    if not holds:
        yield "no margin is safe: add scenarios or trials"
    if value.fewest < 2:
        yield "one trial per scenario does not show how trials vary; two or more, also in the baseline, do, and detect smaller drops"
    trials = 3 * value.fewest
    yield f"promote a baseline of {trials} trials or more, three times as many as a run: its random error affects every later comparison"


def _margin(margin: float, verdicts: Counter[str], pairs: int) -> str:
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (PASS, INCONCLUSIVE, FAIL))
    return f"margin {margin:g}: of {pairs} pairs of these runs {counts}: false alarms {verdicts[FAIL] / pairs * 100:.1f} %"
