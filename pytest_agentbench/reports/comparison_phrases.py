"""The words of reports that compare runs, or derive something from one: compare, sweep, what-if, trend, profile, peers, calibrate.

As in `phrases`, a function gets typed values and returns a text, which is empty if there is nothing to say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE
from pytest_agentbench.gate.calibration import ScoreNoise
from pytest_agentbench.gate.run_comparison import ScenarioResult
from pytest_agentbench.gate.run_pair import Changed
from pytest_agentbench.gate.trend import ExcludedRun, Point, Regression, SetupChange, TrendRun, TrendSeries
from pytest_agentbench.profile.prefixes import BLOCK, CHARACTERS
from pytest_agentbench.records import EVALUABLE
from pytest_agentbench.reports import gate_phrases, suite_phrases
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.numbers import count, number, percent
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.simulation.question import MOCKER
from pytest_agentbench.simulation.ranks import change as simulated_change
from pytest_agentbench.simulation.ranks import percentage, spread
from pytest_agentbench.simulation.worker_speed import StepLine, WorkerSpeed
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision

if TYPE_CHECKING:
    from pytest_agentbench.profile.concurrency import Concurrency, Latencies
    from pytest_agentbench.profile.prefixes import Prefix, PromptReuse
    from pytest_agentbench.profile.tree import Branch
    from pytest_agentbench.simulation.figures import Figures, SettingMetric
    from pytest_agentbench.simulation.what_if import SettingEstimate, WhatIf
    from pytest_agentbench.sweep.verdict import Criteria, SustainedRange

VALUE = 60  # characters of a value of the setup
SHORT = 10  # letters of a commit
SHOWN = 5  # scenarios whose score varies
ANCHORS = ("ttft_p50_ms", "ttft_p99_ms", "hit_ratio", "duration_s")  # numbers that tell how far a simulation is off

#: What a part of the setup says of something that one of the runs does not have.
NOTHING = {"packages": "not installed", **dict.fromkeys(("code", "model", "hardware", "host"), "unknown")}

#: Verdict -> what it says of a difference of scores, and of a ratio of latencies.
OF_SCORES, OF_SPEEDS = {PASS: BETTER, FAIL: WORSE}, {PASS: FASTER, FAIL: SLOWER}

#: Verdict on a level of a sweep -> its words.
OF_LEVELS: Mapping[str, str] = {PASS: "good enough", FAIL: "not good enough", INCONCLUSIVE: "cannot tell"}

NOT_RANKED = "not ranked: it is unknown how far this simulation is from the machine"
NO_REGRESSION = "No regression was found."
NOTHING_COMPARED = "Nothing can be compared: no two runs have scenarios of equal content that were measured."
NOTHING_MEASURED = "Nothing was measured: no run has a rollout that counts."
CHARTS = (
    "Bars are 95 % intervals of each run alone; dashed lines are other setups; a red dot is a step down, a green ring one that fixed it."
)
NO_CALL = "no call whose time is known"
NO_PROMPT = "no call whose prompt is known"
NO_ROLLOUT = "no rollout"
TOTALS = "Calls at the same time count twice in totals; self is what no call below covers."
NOTHING_SHARED = "No two rollouts begin alike."


# Runs side by side


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
    """`-0.347 worse`; empty if nothing is compared, or nothing is known."""
    return _estimate(decision, "+.3f", OF_SCORES)


def difference_ends(decision: Decision | None) -> str:
    """`-1.000 to +0.211`."""
    return _ends(decision, "+.3f")


def ratio(decision: Decision | None) -> str:
    """`1.32 slower`; empty if nothing is compared, or nothing is known."""
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
    """The scores in which no scenario differs; empty if there are none."""
    return f"every scenario of {group} that is compared has the same {', '.join(scores)} in all runs" if scores else ""


def scenarios_left_out(group: str, reference: str, name: str, counts: Mapping[str, int]) -> str:
    """How many scenarios of a run are not compared with the reference, and why; empty if all are."""
    words = {**gate_phrases.MISSING, "only_new": f"only in {name}", "only_base": f"only in {reference}"}
    parts = ", ".join(f"{amount} {words[why]}" for why, amount in counts.items() if amount)
    return f"scenarios of {group} that are left out of the comparison of {name} with {reference}: {parts}" if parts else ""


def retried(group: str, name: str, suite: SuiteResult) -> str:
    """How the rollouts of a run that were tried again score; empty if none was."""
    return f"{group} of {name}: {text}" if (text := suite_phrases.retried(suite)) else ""


# Sweeps


def knee(concurrency: int, last: int) -> str:
    """The level beyond which more in flight costs more than it gains; if it is the last that was measured, it may lie beyond."""
    beyond = "; no level beyond it was measured, and the knee may lie there" if concurrency == last else ""
    return f"{concurrency} in flight, where tokens/s over the median duration of a call are the most{beyond}"


def greatest(sustained: SustainedRange, terms: Criteria) -> str:
    """`2 in flight is good enough, 8 is not; of 4 the data cannot tell (quality lower by no more than 0.05)`."""
    if sustained.shown is None:
        smallest = f"the smallest that is shown not to be: {sustained.refuted or 'none'}"
        return f"no level is shown to be good enough ({criteria(terms)}); {smallest}; more scenarios and trials make the intervals narrower"
    refuted = f"{sustained.refuted} is not" if sustained.refuted else "none that was measured is shown not to be"
    between = f"; of {', '.join(map(str, sustained.undecided))} the data cannot tell" if sustained.undecided else ""
    return f"{sustained.shown} in flight is good enough, {refuted}{between} ({criteria(terms)})"


def criteria(terms: Criteria) -> str:
    """`90.0 % of the calls within ttft 500.0 ms, and quality lower by no more than 0.05`."""
    slo = ", ".join(f"{name} {number(value)} ms" for name, value in terms.slo.items())
    speed = f"{percent(terms.target)} of the calls within {slo}, and " if slo else ""
    return f"{speed}quality lower by no more than {terms.margin:g}"


def search_result(low: int, high: int, sustained: SustainedRange, terms: Criteria) -> str:
    """The answer of a search in several sessions."""
    return f"search from {low} to {high}: {greatest(sustained, terms)}"


def lost(concurrency: int, statuses: Mapping[str, int]) -> str:
    """`concurrency 8: 2 infra_error`: rollouts of a level of which nothing is known; empty if there are none."""
    parts = [f"{amount} {status}" for status, amount in statuses.items() if status not in EVALUABLE]
    return f"concurrency {concurrency}: {', '.join(parts)}" if parts else ""


def warm_up(rollouts: int) -> str:
    """How many rollouts were left out because they warmed a level up; empty if none was."""
    return f"{rollouts} rollouts, the first block of each level" if rollouts else ""


def unwarmed(levels: Sequence[int]) -> str:
    """Levels without a warm-up; empty if each had one."""
    names = ", ".join(map(str, levels))
    return f"concurrency {names} had one block only, and no warm-up: what came first is in its numbers" if levels else ""


def short_blocks(concurrency: int, rollouts: int) -> str:
    """Why a level was not full for much of its time."""
    return (
        f"concurrency {concurrency} ran in blocks of {rollouts} rollouts, so for much of their time fewer were in flight; "
        "a suite of more scenarios makes longer ones"
    )


def good_share(mean: float | None, low: float | None, high: float | None) -> str:
    """`90.0 % (37.0 % to 100.0 %)`: the share of good calls with its interval."""
    return f"{percent(mean)} ({percent(low)} to {percent(high)})"


def level_verdict(verdict: str) -> str:
    """`good enough`."""
    return OF_LEVELS[verdict]


def sweep_files(run: Run) -> Text:
    """What the other files of a sweep have."""
    return (
        *(f"Run {run.id}. ", Code("levels.csv"), " has more columns; ", Code("benchmark_results.csv"), ", ", Code("benchmark_report.md")),
        *(" and ", Code("analysis_*.txt"), " are what ", Code("run_concurrency_benchmark.sh"), " of the NeMo Agent Toolkit's example "),
        "writes, its wall clock being the time in which rollouts of the level ran.",
    )


# Other settings of a stack


def anchor(what_if: WhatIf) -> Text:
    """How far the simulation of the run's own setting is from what was measured."""
    if what_if.own is None:
        options = ",".join(f"{name}={'kv' if name == 'router' else 'N'}" for name in what_if.lacking)
        lacking = " and ".join(what_if.lacking)
        command = Code(f"--own {options}", "command")
        return f"nothing anchors this table: the run does not say its {lacking}, which ", command, " would"
    parts = [_anchored(each, what_if.own.figures, what_if.measured) for each in what_if.measures if each.name in ANCHORS]
    return f"{what_if.run} as it was ({what_if.own.setting.text}), simulated / measured: {', '.join(filter(None, parts))}"


def _anchored(measure: SettingMetric, simulation: Figures, run: Figures) -> str:
    """`TTFT p50 57.0 / 43.0 ms (+32 %)`."""
    one, other = simulation.value(measure), run.value(measure)
    if one is None or other is None:
        return ""
    values = " / ".join(number(value, measure.digits) for value in (one, other))
    return f"{measure.title} {values} {measure.unit}".rstrip() + f" ({simulated_change(one, other, share=measure.share)})"


def replayed(what_if: WhatIf) -> str:
    """What was replayed, and in blocks of how many tokens."""
    left_out = f"; {what_if.left_out} that failed are left out" if what_if.left_out else ""
    blocks = ", ".join(map(str, sorted({answer.setting.block_size for answer in what_if.answers})))
    return f"{what_if.calls} calls replayed by Dynamo's simulator{left_out}; blocks of {blocks} tokens, for each worker"


def worker_speed(timing: WorkerSpeed | str) -> str:
    """How fast a simulated worker is."""
    if isinstance(timing, WorkerSpeed):
        reading, answering = _step(timing.prefill, "that no cache has"), _step(timing.decode, "in work")
        return f"of a worker, as measured: a prompt takes {reading}, a token of an answer {answering}"
    if timing == MOCKER:
        model = "of a worker, by the simulator's own model"
        return f"{model}, in which answers are faster where the cache is larger: what blocks are worth it cannot tell"
    return f"of a worker, as {timing} says"


def _step(line: StepLine, which: str) -> str:
    slope = f" + {line.per_token_ms * 1e3:.3g} ms for 1,000 tokens {which}" if line.per_token_ms else ""
    return f"{line.base_ms:.1f} ms{slope}"


def setting(answer: SettingEstimate) -> str:
    """`2 workers, 800 blocks, kv`; `(own)` behind the setting that the run had."""
    return f"{answer.setting.text}{' (own)' if answer.own else ''}"


def ranked(value: float | None, digits: int, rank: int | None) -> str:
    """`48.3 (1)`: a number with its place."""
    return number(value, digits) + (f" ({rank})" if rank else "")


def ranking(what_if: WhatIf, measure: SettingMetric) -> str:
    """From which difference on settings have places in a number, or why they have none."""
    if measure.name not in what_if.off:
        return "not ranked, for it was not measured"
    off = percentage(what_if.off[measure.name], share=measure.share)
    if all(measure.name in answer.ranks for answer in what_if.answers):
        return f"ranked where settings differ by more than {off}, which the simulation may be off"
    values = [value for answer in what_if.answers if (value := answer.figures.value(measure)) is not None]
    widest = percentage(spread(values, share=measure.share), share=measure.share)
    return f"not ranked: the simulation may be {off} off, and these settings differ by {widest} at most"


# A suite's history


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


# Where time went


def untimed(missing: int, calls: int) -> str:
    """Calls that are in no time; empty if there are none."""
    return f"of {missing} of {calls} calls it is unknown when they were" if missing else ""


def branch(value: Branch) -> str:
    """A name of the call tree, further to the right than what called it."""
    return f"{'  ' * (len(value.path) - 1)}{value.name}"


def most_time(branches: Sequence[Branch]) -> str:
    """`LLM m 6.38 s; LLM m > decoding 4.62 s`: the branches that took most; empty if there are none."""
    return "; ".join(f"{' > '.join(each.path[1:])} {number(each.total_s, 2)} s" for each in branches)


def usual_concurrency(value: Concurrency) -> str:
    """How many calls were in flight usually, and at most."""
    return f"For 90 % of the time in which any call was in flight, {value.usual} or fewer were; at the peak {value.peak}."


def spikes(value: Concurrency) -> str:
    """How often more calls than usual were in flight, and for how much of the time."""
    if not value.spikes:
        return f"There were never more than {value.usual}, so there is no spike."
    longest = f"; the longest {len(value.spikes)}" if value.count > len(value.spikes) else ""
    return f"More than {value.usual}: {count(value.count, 'spike')}, {percent(value.share)} of that time{longest}:"


def calls_in_spikes(value: Concurrency) -> str:
    """How fast the calls were that were sent in spikes, and the others; empty if there is no spike."""
    if not value.spikes:
        return ""
    return f"calls sent in spikes: {_latencies(value.inside)}; outside: {_latencies(value.outside)} (medians)"


def _latencies(value: Latencies) -> str:
    return f"{value.calls} calls, TTFT {number(value.ttft_ms)} ms, E2E {number(value.e2e_ms)} ms"


def in_flight(least: int, most: int) -> str:
    """`3 to 4`."""
    return str(least) if least == most else f"{least} to {most}"


def unknown_prompts(amount: int) -> str:
    """Calls of which no prompt is known; empty if there are none."""
    return f"of {amount} calls the transcripts do not tell the prompts; they are not in here" if amount else ""


def perfect_cache(value: PromptReuse) -> str:
    """What a perfect prefix cache would have had of the prompt tokens."""
    share = value.reusable_tokens / value.prompt_tokens if value.prompt_tokens else None
    whole = f"{number(value.prompt_tokens, 0)} prompt tokens of {value.calls} calls"
    return f"A perfect prefix cache would have {number(value.reusable_tokens, 0)} ({percent(share)}) of {whole}:"


def reuse_between(value: PromptReuse) -> str:
    """Which of these tokens the same rollout had asked before, and which another one."""
    between = value.reusable_tokens - value.within_tokens
    return f"{number(value.within_tokens, 0)} that the same rollout had asked before, {number(between, 0)} that another one had."


def server_hits(value: PromptReuse) -> str:
    """What the server says that it had in its cache."""
    if value.cached_tokens is None:
        return "The server does not say what it had in its cache."
    share = value.cached_tokens / value.cached_of if value.cached_of else None
    return f"The server had {number(value.cached_tokens, 0)} ({percent(share)}) of {number(value.cached_of, 0)} in its cache, as it says."


def prefix_end(prefix: Prefix) -> Text:
    """The last characters of a beginning that rollouts share."""
    return Code(prefix.ends) if prefix.ends else "(before the transcript)"


def estimates(value: PromptReuse) -> str:
    """What the numbers of tokens are from."""
    counts = "fitted to the server's counts" if value.counted else f"{CHARACTERS} characters a token, for no server counted"
    return f"Estimates, from transcripts in blocks of {BLOCK} characters, {counts}; tools and template count as one beginning of all calls."


# Other tools


def peer_table(title: str, of: str) -> str:
    """`AIPerf 0.13, from the raw records of this run`."""
    return f"{title}, from the raw records {of}"


def of_arm(arm: str) -> str:
    """Whose calls they are, in a run with arms."""
    return f"of the arm {arm}, without the time of the others' turns"


OF_RUN = "of this run"


# Limits that hold


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
    found = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (PASS, INCONCLUSIVE, FAIL))
    return f"margin {margin:g}: of {pairs} pairs of these runs {found}: false alarms {verdicts[FAIL] / pairs * 100:.1f} %"
