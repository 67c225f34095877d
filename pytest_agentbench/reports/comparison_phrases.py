"""The words of reports that compare runs: compare, trend, calibrate, and the tables of other tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE
from pytest_agentbench.gate.repeats import ScoreNoise
from pytest_agentbench.gate.run_comparison import ScenarioResult
from pytest_agentbench.gate.run_pair import Changed
from pytest_agentbench.gate.trend import ExcludedRun, Point, Regression, SetupChange, TrendRun, TrendSeries
from pytest_agentbench.reports import gate_phrases, suite_phrases
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision

VALUE = 60  # characters of a value of the setup

SHORT = 10  # letters of a commit

SHOWN = 5  # scenarios whose score varies

#: What a part of the setup says of something that one of the runs does not have.
NOTHING = {"packages": "not installed", **dict.fromkeys(("code", "model", "hardware", "host"), "unknown")}

#: Verdict -> what it says of a difference of scores, and of a ratio of latencies.
OF_SCORES, OF_SPEEDS = {PASS: BETTER, FAIL: WORSE}, {PASS: FASTER, FAIL: SLOWER}

NO_REGRESSION = "No regression was found."

NOTHING_COMPARED = "Nothing can be compared: no two runs have scenarios of equal content that were measured."

NOTHING_MEASURED = "Nothing was measured: no run has a rollout that counts."

CHARTS = (
    "Bars are 95 % intervals of each run alone; dashed lines are other setups; a red dot is a step down, a green ring one that fixed it."
)

OF_RUN = "of this run"


def how_to_read(reference: str) -> Text:
    """What the rows of a comparison with the reference say."""
    return (
        *("Rows ", Code(f"vs {reference}"), " have the difference of scores and of shares that passed, or the ratio of latencies, "),
        "with its interval; without a word none was shown. Of each row all comparisons together are wrong in 5 % of cases at most (Holm).",
    )


def setup_change(changed: Changed, names: Sequence[str]) -> str:
    """`shop.temperature: 0.0 -> 0.6 (short, four)`: what is not as in the reference, and in which runs."""
    return f"{change(changed)} ({', '.join(names)})"


def change(changed: Changed) -> str:
    """`shop.temperature: 0.0 -> 0.6`; of lists only what differs, of prompts and tools that their texts do."""
    old, new = changed.old, changed.new
    if changed.part in ("prompts", "tools") and isinstance(old, str) and isinstance(new, str):
        return f"{changed.path}: another text (hash {old} -> {new})"
    if isinstance(old, list) and isinstance(new, list):
        return f"{changed.path}: {_list_change(old, new)}"
    nothing = NOTHING.get(changed.part, "unset")
    return f"{changed.path}: {_value(old, nothing)} -> {_value(new, nothing)}"


def _list_change(old: Sequence[Any], new: Sequence[Any]) -> str:
    """`32768 -> 65536`: the places in which two lists differ."""
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
    """Which runs say nothing of their setup."""
    return f"another tool made {', '.join(names)}, and says nothing of a setup"


def same_setup(parts: Sequence[str], of: Sequence[str]) -> str:
    """`everything`, or the parts that are the same in all runs, of those that the reference has."""
    return "everything" if [*parts] == [*of] else ", ".join(parts)


def against(reference: str) -> str:
    """The title of a row of differences from the reference."""
    return f"  vs {reference}"


def difference(decision: Decision | None) -> str:
    """`-0.347 worse`. The text is empty if nothing is compared, or nothing is known."""
    return _estimate(decision, "+.3f", OF_SCORES)


def difference_ends(decision: Decision | None) -> str:
    """`-1.000 to +0.211`."""
    return _ends(decision, "+.3f")


def ratio(decision: Decision | None) -> str:
    """`1.32 slower`. The text is empty if nothing is compared, or nothing is known."""
    return _estimate(decision, ".2f", OF_SPEEDS)


def ratio_ends(decision: Decision | None) -> str:
    """`1.20 to 1.45`."""
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
    """The title of a table of scenarios that are not the same in all runs."""
    amount = f"the first {shown} of {total}, --format markdown has all" if shown < total else f"{total}"
    return f"{group}: scenarios that differ ({amount}), {score}{' and how many trials passed' * with_trials}"


def scenario_result(result: ScenarioResult) -> str:
    """`0.727 1/1`: a score, and how many trials passed if a threshold says which do."""
    return f"{result.mean:.3f}" if result.passed is None else f"{result.mean:.3f} {result.passed}/{result.trials}"


def same_scores(group: str, scores: Sequence[str]) -> str:
    """The scores in which no scenario differs. The text is empty if there are none."""
    return f"every scenario of {group} that is compared has the same {', '.join(scores)} in all runs" if scores else ""


def scenarios_left_out(group: str, reference: str, name: str, counts: Mapping[str, int]) -> str:
    """How many scenarios of a run are not compared with the reference, and why. The text is empty if all are."""
    words = {**gate_phrases.MISSING, "only_new": f"only in {name}", "only_base": f"only in {reference}"}
    parts = ", ".join(f"{amount} {words[why]}" for why, amount in counts.items() if amount)
    return f"scenarios of {group} that are left out of the comparison of {name} with {reference}: {parts}" if parts else ""


def retried(group: str, name: str, suite: SuiteResult) -> str:
    """How the rollouts of a run that were tried again score. The text is empty if none was."""
    return f"{group} of {name}: {text}" if (text := suite_phrases.retried(suite)) else ""


def period(runs: Sequence[TrendRun]) -> str:
    """`3 runs, 2026-03-01T05:30:00 to 2026-03-03T05:30:00`."""
    return f"{len(runs)} runs, {runs[0].finished_at} to {runs[-1].finished_at}" if runs[1:] else f"One run, {runs[0].finished_at}"


def regression(group: str, series: TrendSeries, each: Regression) -> str:
    """`shop tsq.mean -0.120 [-0.180, -0.060] in n1, against n0`."""
    return f"{group} {series.metric} {step(series, each)} in {each.run}, against {each.reference}"


def regression_state(each: Regression) -> str:
    """`new, open`."""
    return f"{each.kind}, {each.state}"


def step(series: TrendSeries, each: Regression) -> str:
    """`-0.120 [-0.180, -0.060]`, or of latencies `x1.32 [1.20, 1.45]`."""
    if series.unit:
        return f"x{each.estimate:.2f} [{each.low:.2f}, {each.high:.2f}]"
    return f"{each.estimate:+.3f} [{each.low:+.3f}, {each.high:+.3f}]"


def run_and_commit(run: str, commit: str | None) -> Text:
    """A run, and the commit that it measured."""
    return f"{run} ", Code(commit_of(commit))


def commit_of(commit: str | None) -> str:
    """The first letters of a commit."""
    return commit[:SHORT] if commit else "no commit"


def setup_of_run(each: SetupChange, commit: str | None) -> str:
    """`n3, 0123456789: agent, prompts`: what changed in the setup since the run before."""
    return f"{each.run}, {commit_of(commit)}: {', '.join(each.parts)}"


def excluded(each: ExcludedRun) -> Text:
    """What could not be read, and why."""
    return Code(each.source), f": {each.why}"


def last_value(point: Point) -> str:
    """`0.9 [0.85, 0.95] at last`."""
    return f"{_point(point)} at last"


def point(value: Point, commit: str | None, changed: Sequence[str]) -> str:
    """`n3, 0123456789: 0.9 [0.85, 0.95]; other agent, prompts`."""
    return f"{value.run}, {commit_of(commit)}: {_point(value)}" + (f"; other {', '.join(changed)}" if changed else "")


def _point(value: Point) -> str:
    interval = "" if value.low is None or value.high is None else f" [{value.low:.4g}, {value.high:.4g}]"
    return f"{value.value:.4g}{interval}"


def peer_table(title: str, of: str) -> str:
    """`AIPerf 0.13, from the raw records of this run`."""
    return f"{title}, from the raw records {of}"


def of_arm(arm: str) -> str:
    """Whose calls they are, in a run with arms."""
    return f"of the arm {arm}, without the time of the others' turns"


def suggested_by(group: str, runs: Sequence[str]) -> str:
    """Whose runs a suggestion stands on."""
    return f"{group}: suggested by {len(runs)} runs, {', '.join(runs)}"


def not_the_same(part: str) -> str:
    """A part of the setup in which the runs differ."""
    return f"these runs do not have the same {part}, so that is in the numbers"


def unlimited(score: str) -> str:
    """Why nothing is suggested for a score."""
    return f"{score} does not have both a least and a greatest value: nothing is suggested for it"


def noise(score: str, value: ScoreNoise, *, holds: bool) -> Iterator[str]:
    """What runs in which nothing changed say about a score, and about the margins that were tried."""
    yield f"{score}: means {', '.join(f'{mean:.3f}' for mean in value.means)}, {max(value.means) - min(value.means):.3f} apart"
    most = ", ".join(f"{each.scenario} {each.low:.2f} to {each.high:.2f}" for each in value.flaky[:SHOWN])
    named = f": {most}{', ...' * (len(value.flaky) > SHOWN)}" if most else ""
    yield f"{len(value.flaky)} of {value.scenarios} scenarios were not always scored alike{named}"
    yield from (_margin(margin, verdicts, value.pairs) for margin, verdicts in value.verdicts.items())
    if not holds:
        yield "no margin holds: more scenarios or trials make one"
    if value.fewest < 2:
        yield "one trial of a scenario does not show how trials vary; two or more on both sides do, and find smaller drops"
    yield f"promote a baseline of {3 * value.fewest} trials or more, three times a run's: every later run shares what chance did to it"


def _margin(margin: float, verdicts: Counter[str], pairs: int) -> str:
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (PASS, INCONCLUSIVE, FAIL))
    return f"margin {margin:g}: of {pairs} pairs of these runs {counts}: false alarms {verdicts[FAIL] / pairs * 100:.1f} %"
