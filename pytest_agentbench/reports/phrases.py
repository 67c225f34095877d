"""The words of reports: a function for each kind of finding. A sentence that a reader of a run sees stands here and nowhere else.

A function gets typed values and returns a text; it is empty if there is nothing to say. Names of tools, scenarios and commands are
marked as `Code`, and nothing is escaped here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_agentbench.backends.telemetry.engine_stats import Gauge, GpuUse, ServingSummary
from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE, hit_ratio
from pytest_agentbench.gate.exit_status import CANNOT_TELL, EXITS, NO_GATE, SKIPPED
from pytest_agentbench.gate.rules import floors_of
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.answers import AnswersSummary
from pytest_agentbench.metrics.chosen_window import WindowSummary
from pytest_agentbench.metrics.drafts import DraftsSummary
from pytest_agentbench.metrics.efficiency import Efficiency
from pytest_agentbench.metrics.goodput import GoodputSummary
from pytest_agentbench.metrics.performance import PartOfTime, PerformanceSummary, SteadyCalls, SteadyRollouts
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.metrics.roles import RoleUse
from pytest_agentbench.metrics.slow_calls import SlowCall
from pytest_agentbench.metrics.stopwatch import SATURATED, Stopwatch
from pytest_agentbench.metrics.windows import InFlight
from pytest_agentbench.records import ERROR_KINDS, EVALUABLE, Rollout, Scale
from pytest_agentbench.reports import numbers
from pytest_agentbench.reports.document import Code, Finding, Measure, Text, spans
from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.reports.numbers import count, number, percent, seconds_text, significant
from pytest_agentbench.reports.outcome import score_of
from pytest_agentbench.runs.arm_results import ArmResult, ArmsCompared, MetricCompared
from pytest_agentbench.runs.contents import BackendUse, Environment, Failure, OwnMean, Run
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.results import Mean, Passes, QuarantineResult, RetriedMeans, ScorerFailure, SuiteResult, WorstScore
from pytest_agentbench.runs.tasks import TaskFailure, TasksSummary
from pytest_agentbench.runs.triage import Confusion, ToolMistakes, Triage
from pytest_agentbench.runs.verdicts import EarlierRuns, GateResult, InterimLook, RoundsResult, RuleResult
from pytest_agentbench.stats.decisions import INCONCLUSIVE, PASS, RUN
from pytest_agentbench.stats.multiple import FEWEST, Suspect
from pytest_agentbench.stats.pass_rates import PassRate
from pytest_agentbench.stats.percentiles import HIGH, LatencySpread, needed
from pytest_agentbench.suites.arms import CARRY, PRIMED

NAMED = 3  # suites that a headline names, and scenarios that a line names
BY_HAND = "hand"  # the source of labels that somebody has read
ENOUGH = 3  # looks in the time of the calls; of fewer no mean and no peak is told

#: Status of a rollout -> the words for its share in a headline.
ENDINGS = {
    "limit": "ended at a limit",
    "agent_error": "ended as agent_error",
    "infra_error": "ended as infra_error",
    "cancelled": "were cancelled",
}

#: Who had the time of rollouts.
PARTS = {
    "decoding": "decoding",
    "first_token": "waiting for the first token",
    "tools": "tools",
    "client_queue": "client queue",
    "roles": "other roles",
    "judge": "judge",
    "agent": "agent",
}

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
SESSION_RATES = "Rates are over the time of all sessions, without the pauses between them."
MEANS_WITH_QUARANTINED = "Means are with the scenarios in quarantine."
MEANS_OF_TRIALS = "Commands, tokens and seconds are means of the agent's trials."
SERVING_CALLS = "Serving metrics are of calls that reached the backend under test. Those to other endpoints, and judges', are here alone."
DEFINITIONS: Text = (
    "TTFT: last request byte sent to first content, reasoning or tool-call text. ITL: gaps between output events, pooled. ",
    "TPOT: (last - first) / (tokens - tokens of the first event) per call. Client queue: from the agent's call to the send. ",
    *("Stamps ", Code("user"), " are taken in the tap's process, ", Code("kernel"), " at the receipt of the packet."),
)
INTERVALS = (
    "In brackets: 95 % intervals from order statistics, as if the values were independent. "
    "Calls of one scenario and gaps of one stream are not, so the intervals are too narrow."
)
SLOW_CALLS: Text = (
    *("Times are milliseconds, then tokens. ", Code("agentbench show RUN --profile", "command")),
    " says why, and has the agents' call tree, concurrency spikes, and what prompts share.",
)
DIFFERENCES = (
    "Paired by scenario. Scores: difference of means. Latencies (ms): ratio, above 1 is slower. "
    "An interval without 0, or without 1, is a difference."
)
FAMILY_OF_ARMS = "Of each metric all comparisons together are wrong in 5 % of runs at most (Holm); their intervals are of 95 % or more."
DERIVED = "every number here can be derived again from rollouts.jsonl beside this file"
UNRECORDED = "what it ran on is not recorded"
NO_LATENCIES = "No LLM call was measured, so there are no latencies."
CACHED = "of the prompt tokens were found there"
WHOLE_REPORT = "The whole report"
IN_RUN_JSON = "in run.json"
NEVER = "never"
ADJUSTED = "TTFT, failed calls as never"
MORE = "agentbench show, or -v; docs/metrics.md explains every number"


# Numbers of any section


def measure(value: Measure) -> str:
    """`11.3 ms, median (95 % interval 9.6 to 10.9); p90 12.0 ms`."""
    known = ", ".join(filter(None, (" ".join(filter(None, (figure(value), unit_of(value)))), value.statistic)))
    return "; ".join(filter(None, (known + (f" ({text})" if (text := interval(value)) else ""), value.about)))


def figure(value: Measure) -> str:
    """The number alone: `11.3`, or `95.9 %` for a share."""
    if value.value is None:
        return "not measured"
    return percent(value.value) if value.unit == "%" else number(value.value, value.digits)


def unit_of(value: Measure) -> str:
    """The unit behind the number; empty for a share, whose sign is a part of the number, and for what was not measured."""
    return "" if value.unit == "%" or value.value is None else value.unit


def interval(value: Measure) -> str:
    """`95 % interval 9.6 to 10.9`."""
    if value.low is None or value.high is None:
        return ""
    return f"95 % interval {number(value.low, value.digits)} to {number(value.high, value.digits)}"


def mean(value: Mean | None) -> str:
    """`0.612 [0.571, 0.653]`: a mean with its 95 % interval over scenarios."""
    if value is None:
        return "not measured"
    ends = "(no interval)" if value.low is None else f"[{value.low:.3f}, {value.high:.3f}]"
    return f"{value.value:.3f} {ends}"


def with_interval(value: float, ends: tuple[float, float] | None) -> str:
    """`12.0 [11.0, 13.5]`; the number alone if there is no interval."""
    return f"{number(value)} {numbers.brackets(ends)}".rstrip()


def ends(low: float, high: float) -> str:
    """`0.111 to 0.889`."""
    return f"{low:.3f} to {high:.3f}"


def median_and_p95(spread: LatencySpread | None) -> str:
    """`12.0, 25.0`, and `-` for what is not known."""
    return "-" if spread is None else f"{number(spread.p50)}, {number(spread.p95)}"


def more(amount: int, what: str = "") -> str:
    """`and 4 more`, of what a list has left out; empty if that is nothing."""
    return f"and {amount} more{f' {what}' if what else ''}" if amount > 0 else ""


# The outcome of a run


def headline(run: Run) -> str:
    """`FAIL, exit status 1: a test or the gate failed; gate PASS; banking tsq 0.412 [0.371, 0.453]`: the answer of a run."""
    return "; ".join((", ".join(filter(None, (run.verdict, _reason(run)))), *_notes(run), *_means(run), *_shares(run)))


def _reason(run: Run) -> str:
    if status := run.exit_status:
        return f"exit status {status}: {EXITS[status].text if status in EXITS else 'see pytest'}"
    if run.verdict == INCONCLUSIVE:
        return EXITS[CANNOT_TELL].text
    if run.verdict != NO_GATE:
        return ""
    if run.gate:
        return f"the rules are only shown, and say {run.gate.verdict}"
    return "no test applies a threshold" if any(map(_has_floor, run.suites.values())) else "no rule or threshold was applied"


def _notes(run: Run) -> Iterator[str]:
    gate_result = run.gate
    if gate_result and run.verdict not in (gate_result.verdict, NO_GATE):
        yield f"gate {gate_result.verdict}"
    if run.verdict in (PASS, INCONCLUSIVE):
        asked = {each.suite for each in gate_result.rules} if gate_result else set()
        silent = [group for group, suite in run.suites.items() if group not in asked and not _has_floor(suite)]
        left = len(silent) - NAMED
        yield from (f"no rule for {', '.join(silent[:NAMED])}{f' and {left} more' if left > 0 else ''}",) if silent else ()
    if tries := earlier_runs(run.earlier):
        yield tries


def _has_floor(suite: SuiteResult) -> bool:
    return bool(floors_of(suite.thresholds))


def _means(run: Run) -> Iterator[str]:
    """The main score of the first suites. The arms of an A/B session are compared elsewhere."""
    suites = [] if run.ab else [*run.suites.items()]
    yield from (f"{group} {suite.main_score} {mean(suite.main_mean)}" for group, suite in suites[:NAMED])
    if left := suites[NAMED:]:
        yield f"and {count(len(left), 'more suite')}"


def _shares(run: Run) -> Iterator[str]:
    """One text for each status but `ok`, and one for rollouts that were not run."""
    total = sum(sum(suite.rollouts.values()) for suite in run.suites.values())
    for status, words in ENDINGS.items():
        if amount := sum(suite.rollouts.get(status, 0) for suite in run.suites.values()):
            yield f"{_share(amount, total, 'rollout')} {words}"
    if run.plan.not_run:
        planned = run.plan.rollouts
        yield f"{_share(run.plan.not_run, planned, 'planned rollout')} {'were' if planned > 1 else 'was'} not run"


def _share(amount: int, total: int, noun: str) -> str:
    return f"{amount:,} of {count(total, noun)} ({percent(amount / total).replace('.0 %', ' %')})"


def earlier_runs(earlier: EarlierRuns | None) -> str:
    """`the 3rd run of this setup, 2 before it were not PASS`; empty if every earlier run was PASS."""
    if not earlier or not earlier.not_passed:
        return ""
    place, failed = earlier.runs + 1, len(earlier.not_passed)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"the {place}{ending} run of this setup, {failed} before it {'were' if failed > 1 else 'was'} not PASS"


def backend_failure(run: Run) -> str:
    """Why the backend failed. The first test that it keeps from running shows all lines of it."""
    failure = run.backend.failure
    return brief(failure) if run.tests.errors else failure.partition("\n")[0]


def tests(run: Run) -> str:
    """`1 failed, 2 could not be measured, 9 passed`; empty if all passed."""
    words = {"failed": "failed", "errors": "could not be measured", "passed": "passed"}
    if not run.tests.failed and not run.tests.errors:
        return ""
    return ", ".join(f"{amount} {word}" for name, word in words.items() if (amount := getattr(run.tests, name)))


def sessions(run: Run) -> str:
    """How many rollouts of a resumed run each session ran; empty for a run of one session."""
    if len(run.sessions) < 2:
        return ""
    *earlier, last = run.sessions
    parts = [f"{each.rollouts} from session {each.session} ({each.started_at})" for each in earlier]
    again = f"; {run.repeated} of them had failed before and ran again" if run.repeated else ""
    levels = {each.concurrency for each in run.sessions if each.rollouts}
    mixed = f"; NOT at one concurrency: {', '.join(map(str, sorted(levels)))} rollouts in flight" if len(levels) > 1 else ""
    return f"{last.session} sessions: {', '.join(parts)}, {last.rollouts} from this one{again}{mixed}"


def interruptions(run: Run) -> str:
    """`pool 2, tap 1; 9 attempts were run again`; empty if no part of the session died."""
    parts = [f"{part} {amount}" for part, amount in run.interruptions.deaths.items()]
    attempts = run.interruptions.attempts
    again = f"{attempts} attempt{'s were' if attempts != 1 else ' was'} run again"
    return f"{', '.join(parts)}; {again}" if parts else ""


def restarts(backend: BackendUse) -> str:
    """`engine once, worker-1 3 times, in the middle of the run`; empty if nothing was started again."""
    counts = backend.restarts or {}
    services = ", ".join(f"{name} {'once' if amount == 1 else f'{amount} times'}" for name, amount in counts.items())
    return f"{services}, in the middle of the run" if services else ""


def unknown_suites(run: Run) -> str:
    """Suites of which nothing was measured although thresholds are asked of them; empty if that is as it should be."""
    names = run.unknown_suites if run.verdict != SKIPPED else ()
    return f"{', '.join(names)}: no rollout was measured, so no threshold is known to hold" if names else ""


def not_run(run: Run) -> str:
    """`2 of 8 planned rollouts`; empty if all were run."""
    return f"{run.plan.not_run} of {run.plan.rollouts} planned rollouts" if run.plan.not_run else ""


def progress(run: Run) -> str:
    """`8 rollouts, 6 finished, 2 not run`."""
    plan = run.plan
    return f"{plan.rollouts} rollouts, {plan.finished} finished, {plan.not_run} not run"


def exit_status(run: Run) -> str:
    """`exit status 1`; empty for a run that no session of ours made."""
    return "" if run.exit_status is None else f"exit status {run.exit_status}"


def resume(run: Run) -> Text:
    """The command that resumes a run; empty if nothing is left to do."""
    return Code(run.resume or "", "command")


def report(directory: str) -> Text:
    """Where the report is."""
    return Code(f"{directory}/report.md", "command")


def files(directory: str) -> Text:
    """Where the report and the data of a run are."""
    return (Code(f"{directory}/report.md", "command"), " (and run.json, rollouts.jsonl)")


def imported(run: Run) -> str:
    """Whose results a run is made of."""
    origin = run.imported
    return f"by {origin.tool}, from {origin.path}, read {origin.at}" if origin else ""


def own_mean(value: OwnMean) -> str:
    """`shop harbor_reward: 0.500 is the tool's own mean, 1.000 this run's: Harbor counts ...`."""
    ours = "there is none in this run" if value.ours is None else f"{value.ours:.3f} this run's"
    other = f", {ours}: {value.why}" if value.why else ", and this run's"
    return f"{value.suite} {value.score}: {value.theirs:.3f} is the tool's own mean{other}"


def section_failure(plugin: str, error: Exception) -> str:
    """Why the section of a plugin is missing."""
    return f"The section of {plugin} could not be made: {type(error).__name__}: {error}"


# What to look at first


def about_suite(name: str, finding: Finding) -> Text:
    """A finding of one of several suites: `banking: 63 of 100 rollouts have a mistake`."""
    return (f"{name}: ", *spans(finding.words))


def failed_of_all(performance: PerformanceSummary) -> str:
    """`9 of 15 LLM calls failed: 9 cut`; empty if none did."""
    return _failures(performance, " failed")


def _failures(performance: PerformanceSummary, verb: str) -> str:
    failed = sum(performance.failed_calls.values())
    kinds = ", ".join(f"{amount} {kind}" for kind, amount in performance.failed_calls.items())
    return f"{failed} of {performance.calls} LLM calls{verb}: {kinds}" if failed else ""


def time_of(part: str, of_time: PartOfTime) -> str:
    """`64.9 % of the rollouts' time went to decoding`."""
    return f"{percent(of_time.share)} of the rollouts' time went to {PARTS[part]}"


def ended_badly(suite: SuiteResult) -> str:
    """`not all rollouts ended well: 3 limit`; empty if all did."""
    bad = {status: amount for status, amount in suite.rollouts.items() if status != "ok" and amount}
    return f"not all rollouts ended well: {statuses(bad)}" if bad else ""


def most_confused(triage: Triage) -> Text:
    """`most confused: get_balance instead of get_history 7 times`; empty if no tool was taken for another."""
    return ("most confused: ", *confusion(triage.confused[0])) if triage.confused else ""


def worst_tool(triage: Triage) -> Text:
    """`the tool with the most mistakes: get_balance, which 31 of 40 rollouts did not call`."""
    return ("the tool with the most mistakes: ", *tool(triage.tools[0])) if triage.tools else ""


def commonest_failure(tasks: TasksSummary) -> Text:
    """`the most frequent way to fail: limit: iterations: 4 rollouts, for example ...`; empty if every task was solved."""
    return ("the most frequent way to fail: ", *task_failure(tasks.failures[0])) if tasks.failures else ""


def flips(passes: Passes | None) -> Text:
    """`trials of 2 scenarios do not agree whether it passes: a, b`, those nearest to a coin's toss first; empty if all agree."""
    mixed = [each for each in (passes.scenarios if passes else ()) if each.passed]
    if not mixed:
        return ""
    nearest = sorted(mixed, key=lambda each: (abs(each.passed / each.trials - 0.5), each.scenario))
    named = _listed([Code(each.scenario, "scenario") for each in nearest[:NAMED]])
    others = (" and others",) if len(mixed) > NAMED else ()
    return (f"trials of {count(len(mixed), 'scenario')} do not agree whether it passes: ", *named, *others)


def _listed(names: Sequence[Code]) -> tuple[str | Code, ...]:
    """Names with commas between them."""
    return tuple(part for name in names for part in (", ", name))[1:]


# A suite


def dataset(suite: SuiteResult) -> str:
    """One line on what was run, so that nobody takes one data set for another."""
    data = suite.dataset
    left = "".join(f", {amount} {what} left out" for what, amount in data.left_out.items())
    return f"{data.name}: {data.size} scenarios{left}, labels: {data.label_source}, sha256 {data.sha256[:12] or 'unknown'}"


def statuses(rollouts: Mapping[str, int]) -> str:
    """`97 ok, 3 limit`; what did not happen is left out."""
    return ", ".join(f"{amount} {status}" for status, amount in rollouts.items() if amount) or "none"


def rollouts(suite: SuiteResult) -> str:
    """`100 rollouts, all ok`, or `100 rollouts: 97 ok, 3 limit; labels: heuristic-v1`."""
    total = sum(suite.rollouts.values())
    how = "all ok" if total and total == suite.rollouts["ok"] else statuses(suite.rollouts)
    source = suite.dataset.label_source
    labels = "" if source == BY_HAND else f"; labels: {source}"
    return f"{total} rollout{'s' * (total != 1)}{',' if how == 'all ok' else ':'} {how}{labels}"


def retried(suite: SuiteResult) -> str:
    """Whether rollouts that were tried again score like the others; empty if none was."""
    if not suite.retried:
        return ""
    found = [_retried_mean(name, means) for name, means in suite.retried_scores.items() if means.retried]
    return ": ".join(filter(None, [f"{suite.retried} tried more than once", ", ".join(found)]))


def _retried_mean(name: str, means: RetriedMeans) -> str:
    return f"{name} {mean(means.retried)} against {mean(means.others)} of the others"


def mean_of(value: Mean | None) -> str:
    """`mean, 95 % interval of the suite over 100 scenarios`: what a mean is over."""
    if value is None:
        return ""
    together = f" in {value.clusters} cluster{'s' * (value.clusters != 1)}" if value.clusters < value.scenarios else ""
    scenarios = f"{value.scenarios} scenario{'s' * (value.scenarios != 1)}{together}"
    return f"mean over {scenarios}, no interval" if value.low is None else f"mean, 95 % interval of the {value.of} over {scenarios}"


def score(value: Mean | None) -> str:
    """`0.612 [0.571, 0.653] mean, 95 % interval of the suite over 100 scenarios`."""
    if value is None:
        return "not measured"
    return f"{value.value:.3f} {mean_of(value)}" if value.low is None else f"{mean(value)} {mean_of(value)}"


def evaluable(value: Mean | None) -> str:
    """`0.612 [0.571, 0.653] over evaluable rollouts only`."""
    return "no evaluable rollout" if value is None else f"{mean(value)} over evaluable rollouts only"


def agent_errors(suite: SuiteResult) -> str:
    """What an agent's error counts as in the means over all, and what the intervals are over."""
    counted = {name: each.worst for name, each in suite.scales.items() if each.worst is not None}
    left_out = [name for name in suite.scales if name not in counted]
    values = {f"{value:g}" for value in counted.values()}
    if not left_out and len(values) == 1:
        errors = f"an agent's error counts as {values.pop()}, the worst value"
    else:
        parts = [f"as {value:g} in {name}" for name, value in counted.items()]
        sentences = [f"an agent's error counts as the worst value, {', '.join(parts)}"] if parts else []
        sentences += [f"agent errors are left out of {', '.join(left_out)}, without a worst value"] if left_out else []
        errors = "; ".join(sentences)
    return f"Over all: {errors}; an infra_error is left out. Intervals are over scenarios; trials of one scenario are averaged first."


def passes(value: Passes, of: Scale) -> str:
    """`0.812 [0.771, 0.853] of the trials, those with tsq >= 0.5; pass@3 0.9 [0.8, 1.0], pass^3 0.5 [0.4, 0.6]; 95 % intervals`."""
    first = f"{mean(value.pass_all[0])} of the trials, those with {value.score} {of.sign} {value.floor:g}"
    last = ((False, value.pass_at[-1]), (True, value.pass_all[-1]))
    rates = [f"{PassRate(every, each.k).name} {mean(each)}" for every, each in last if each.k > 1]
    return f"{'; '.join(filter(None, (first, ', '.join(rates))))}; 95 % intervals"


def always_passed(value: Passes, left: int) -> str:
    """`7 scenarios passed in all of their trials; 3 more are in run.json`; empty if there are neither."""
    always = [f"{count(value.always, 'scenario')} passed in all of their trials"] if value.always else []
    return "; ".join([*always, *([f"{left} more are in run.json"] if left > 0 else [])])


def efficiency(value: Efficiency) -> str:
    """What the scores of a suite took, as far as it is known; empty if nothing is."""
    known = {metric: each for metric in registry.efficiency().values() if (each := value.metrics[metric.name]) is not None}
    return ", ".join(f"{metric.title} {significant(each)}{_currency(metric, value)}" for metric, each in known.items())


def _currency(metric: Metric, value: Efficiency) -> str:
    return f" {value.currency}" if metric.money else ""


def costs(value: Mapping[str, float | None]) -> str:
    """`1.25 USD`; empty if nobody said what tokens cost."""
    return ", ".join(f"unknown, in {currency}" if cost is None else f"{significant(cost)} {currency}" for currency, cost in value.items())


def costs_of_all(value: Mapping[str, float | None]) -> str:
    """`1.25 USD, all suites together`; empty if nobody said what tokens cost."""
    return f"{costs(value)}, all suites together" if value else ""


def judged(value: AnswersSummary, without: int) -> str:
    """`by Wilson; 12 questions, 8 of 12 answers by the judge`; `without` a score are answers whose scorer or judge failed."""
    left = f"; {without} without a score, for the scorer or its judge failed" if without else ""
    return f"interval by Wilson; {value.questions:,} questions, {value.judged:,} of {value.answers:,} answers by the judge{left}"


def confidence(value: AnswersSummary) -> str:
    """`of 12 answers that are 0.383 sure in the mean, 1 bin`; without an error, that no answer says how sure it is."""
    if value.calibration_error is None or value.confidence is None:
        return "no answer says how sure it is"
    return f"of {value.confident:,} answers that are {value.confidence:.3f} sure in the mean, {count(value.bins, 'bin')}"


def drafts(value: DraftsSummary) -> str:
    """How many drafts agents made, and how many rollouts have an accepted one."""
    each = value.drafts / value.rollouts
    accepted = f"{value.accepted} ({percent(value.accepted / value.rollouts)}) with an accepted one"
    return f"{value.drafts} of {value.rollouts} rollouts ({each:.2f} each), {accepted}"


def draft_score(value: DraftsSummary, name: str) -> str:
    """`tsq 0.500 of the first drafts, 0.600 of the chosen ones`."""
    means = value.scores[name]
    return f"{name} {means.first:.3f} of the first drafts, {means.chosen:.3f} of the chosen ones"


def quarantined_count(suite: SuiteResult) -> str:
    """`2 of 100 scenarios, in no gate`; empty if there are none."""
    entries = len(suite.quarantined)
    return f"{entries} of {suite.dataset.size} scenarios, in no gate" if entries else ""


def quarantined(suite: SuiteResult) -> str:
    """Scenarios that the gate leaves out, who answers for them, and how they did; empty if there are none."""
    parts = [f"{each.scenario} ({each.owner}, until {each.expires}; {quarantine_tests(each)})" for each in suite.quarantined]
    return f"{quarantined_count(suite)}: {', '.join(parts)}" if parts else ""


def quarantine_tests(entry: QuarantineResult) -> str:
    """`2 of 3 tests passed`."""
    return f"{entry.passed} of {count(entry.tests, 'test')} passed"


def unsupported_count(suite: SuiteResult) -> str:
    """`2 of 80 tasks ask for what is not supported`; empty if there are none."""
    return f"{len(suite.unsupported)} of {suite.dataset.size} tasks ask for what is not supported" if suite.unsupported else ""


def unsupported(suite: SuiteResult) -> str:
    """Tasks that were skipped for what they ask for; empty if there are none."""
    return f"{len(suite.unsupported)} of {suite.dataset.size} tasks: {', '.join(suite.unsupported)}" if suite.unsupported else ""


def faulty(triage: Triage) -> str:
    """`63 of 100 rollouts have a mistake, some of them several: missing call 40, bad argument 31`."""
    some = ", some of them several" if sum(each.rollouts for each in triage.kinds) > triage.faulty else ""
    return f"{triage.faulty} of {triage.rollouts} rollouts ha{'s' if triage.faulty == 1 else 've'} a mistake{some}: {mistakes(triage)}"


def mistakes(triage: Triage) -> str:
    """`missing call 40, bad argument 31, wrong tool 12`."""
    return ", ".join(f"{each.kind} {each.rollouts}" for each in triage.kinds)


def mistake_share(amount: int, total: int) -> str:
    """`9, 90.0 %`."""
    return f"{amount}, {percent(amount / total)}"


def examples(ids: Sequence[str], detail: str) -> Text:
    """`a, b, c: no get_rate`."""
    names = _listed([Code(each, "scenario") for each in ids])
    return (*names, ": ", Code(detail)) if detail else names


def confusion(value: Confusion) -> tuple[str | Code, ...]:
    """`get_balance instead of get_history 7 times`."""
    times = f" {value.rollouts} times" if value.rollouts > 1 else " once"
    return Code(value.actual), " instead of ", Code(value.expected), times


def tool(value: ToolMistakes) -> tuple[str | Code, ...]:
    """`get_balance, which 31 of 40 rollouts did not call, 2 called unasked, 5 gave wrong arguments`."""
    parts = [f"{value.missing} of {value.expected} rollouts did not call"] * bool(value.missing)
    parts += [f"{value.unexpected} called unasked"] * bool(value.unexpected)
    parts += [f"{value.bad_arguments} gave wrong arguments"] * bool(value.bad_arguments)
    return Code(value.tool), f", which {', '.join(parts)}"


def tools(names: Sequence[str]) -> Text:
    """Names of tools; `none` of none."""
    return Code(", ".join(names) or "none")


def worst(value: WorstScore) -> str:
    """`banking-010 0.000 "Bees don't mind paperwork"`."""
    question = f' "{value.question}"' if value.question else ""
    return f"{value.id} {value.score:.3f}{question}"


def worst_tools(value: WorstScore) -> str:
    """`expected find_item, order_item; actual find_item`."""
    expected, actual = (", ".join(names) or "none" for names in (value.expected_tools, value.actual_tools))
    return f"expected {expected}; actual {actual}"


def scenarios_left(shown: int, total: int) -> str:
    """`The worst 200; 40 more are in run.json.`; empty if all are shown."""
    return f"The worst {shown}; {total - shown} more are in run.json." if total > shown else ""


def spreadsheet(run: Run) -> Text:
    """How the scores of each trial are written as CSV."""
    command = Code(f"agentbench export {run.id} --as csv", "command")
    return "For a spreadsheet, each trial with the parts of its scores: ", command, " writes scores.csv."


def scorer_failure(value: ScorerFailure) -> str:
    """`3 rollouts: scorer mistakes failed: ValueError: no label (scorers.py:12), first in banking-003`."""
    return f"{count(value.rollouts, 'rollout')}: scorer {value.score} failed: {brief(value.error)}, first in {value.first}"


def more_causes(amount: int) -> str:
    """`and 2 more causes, see report.md`; empty if all are shown."""
    return f"and {count(amount, 'more cause')}, see report.md" if amount > 0 else ""


def tasks(value: TasksSummary) -> str:
    """`3 of 5 tasks solved in all verified trials, 1 in some of them, 1 in none`."""
    total = len(value.tasks)
    always, never = sum(each.solved == each.trials for each in value.tasks), sum(each.solved == 0 for each in value.tasks)
    parts = [f"{always} of {total} tasks solved in all verified trials", f"{never} in none"]
    if some := total - always - never:
        parts.insert(1, f"{some} in some of them")
    return ", ".join(parts)


def task_failure(value: TaskFailure) -> tuple[str | Code, ...]:
    """`limit: iterations, first failed: test_port: 4 rollouts, for example fix-permissions`."""
    check = f", first failed: {value.check}" if value.check else ""
    return f"{value.end}{check}: {count(value.rollouts, 'rollout')}, for example ", Code(value.examples[0], "scenario")


def tasks_left(left: int) -> str:
    """What the table of tasks shows, and how to read it."""
    return f"The lowest rewards first{f'; {left} more tasks are in run.json' if left > 0 else ''}. {MEANS_OF_TRIALS}"


def solved(amount: int, trials: int) -> str:
    """`2 of 3`."""
    return f"{amount} of {trials}"


def role(use: RoleUse) -> str:
    """What the calls of a role took."""
    failed = f" ({sum(use.failed_calls.values())} failed)" if use.failed_calls else ""
    cost = f", {text}" if (text := role_cost(use)) else ""
    timed = "all of it" if use.measured == use.calls else f"{use.measured} calls" if use.measured else "none of it"
    tokens = f"{use.prompt_tokens:,} + {use.output_tokens:,} tokens"
    return f"{use.calls} calls{failed}, {tokens}, {use.seconds:.1f} s{cost}, {timed} in the timings of calls"


def role_cost(use: RoleUse) -> str:
    """`0.0123 USD`; empty without prices."""
    return costs({use.currency: use.cost}) if use.currency else ""


def role_endpoints(use: RoleUse) -> Text:
    """`the backend`, and the addresses of other endpoints."""
    own = ("the backend",) if use.measured or not use.endpoints else ()
    others = _listed([Code(each) for each in use.endpoints])
    return (*own, *((", ",) if own and others else ()), *others)


def role_tokens(use: RoleUse) -> str:
    """`3,916 (2,000 cached) + 336`."""
    return f"{use.prompt_tokens:,} ({use.cached_tokens:,} cached) + {use.output_tokens:,}"


# The gate


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


def gate_verdict(result: GateResult) -> str:
    """`gate FAIL`."""
    return f"gate {result.verdict}"


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


def look(rounds: RoundsResult, value: InterimLook, rule: RuleResult) -> str:
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
    """Why nothing could be decided; empty of a rule that was decided."""
    undecided = f"the interval holds the threshold: more {NARROWER.get(rule.of, 'trials or scenarios')} make it narrower"
    return rule.reason or (undecided if rule.verdict == "INCONCLUSIVE" else "")


def power(rule: RuleResult) -> str:
    """What such a run could have found, and with which margins it passes; empty if that is not known."""
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
    """The smallest margin with which a run of this size can pass; empty if the rule's own is larger, or could be decided."""
    floor, undecided = rule.floor, rule.verdict == "INCONCLUSIVE" and not rule.reason
    if rule.detectable is None or floor is None or not undecided or not rule.vs_baseline or not 0 < abs(rule.threshold) <= floor:
        return ""
    return f"a run of this size cannot pass with a margin below {floor:.3f}, whatever it measures"


def p_worse(rule: RuleResult) -> str:
    """The p-value of the scores having got worse; empty if it was not computed."""
    return "" if rule.p_worse is None else f"p of worse, the trials of each scenario dealt out anew: {rule.p_worse:.3g}"


def left_out_scenarios(rule: RuleResult) -> str:
    """`scenarios left out: 3 not in the baseline`; empty if none was."""
    parts = ", ".join(f"{amount} {what}" for name, what in MISSING.items() if (amount := getattr(rule.missing, name)))
    return f"scenarios left out: {parts}" if parts else ""


def change(rule: RuleResult, suspect: Suspect) -> tuple[str | Code, ...]:
    """`banking-017 tsq 1.000 -> 0.000`."""
    return Code(suspect.scenario, "scenario"), f" {score_of(rule)} {suspect.base:.3f} -> {suspect.new:.3f}"


def claim(rule: RuleResult, suspect: Suspect) -> Text:
    """`banking-017 tsq 1.000 -> 0.000 (p 0.002)`."""
    return (*change(rule, suspect), f" (p {suspect.p:.3g})")


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


# Annotations of a commit


def found(rule: RuleResult) -> str:
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


# A run that has not ended


def running(ended: int) -> str:
    """`It goes on: 12 rollouts have ended`."""
    return f"It goes on: {ended:,} rollouts have ended"


def stopped(ended: int) -> str:
    """`It has stopped: 12 rollouts have ended`."""
    return f"It has stopped: {ended:,} rollouts have ended"


def session_began(number: int, at: str, concurrency: int) -> str:
    """`session 2 began at 2026-01-02T03:04:05, 8 rollouts in flight at most`."""
    return f"session {number} began at {at}, {concurrency} rollouts in flight at most"


def mean_so_far(rollouts: int) -> str:
    """`mean of 12 so far`."""
    return f"mean of {rollouts:,} so far"


def failed_so_far(calls: int) -> str:
    """`2 failed`."""
    return f"{calls:,} failed"


def how_to_resume(name: str) -> Text:
    """How a run goes on that no session works on."""
    option = Code(f"--agentbench-resume={name}", "command")
    return "No session works on it: it is summed up now, or was killed. ", option, " goes on with it."


MEANS_MAY_MOVE = "Short rollouts end first, so the means may move; intervals and the verdict come when the run has ended."


# Arms


def arms(ab: ArmsCompared) -> str:
    """`new (backend-b) against old (backend-a), interleaved`."""
    base, *others = (f"{each.name} ({each.value})" for each in ab.arms)
    return f"{', '.join(others)} against {base}, {ab.order}"


def whole(ab: ArmsCompared) -> list[MetricCompared]:
    """Returns the comparisons of arms that ran to their end."""
    lost = {each.name for each in ab.arms if each.failure}
    return [each for each in ab.comparisons if not {each.base_arm, each.new_arm} & lost]


def lost_arms(ab: ArmsCompared) -> str:
    """Arms that are not there, and what is not compared for it; empty if all is well."""
    failures = [each.failure.partition("\n")[0] for each in ab.arms if each.failure]
    what = "not in these comparisons" if whole(ab) else "nothing is compared"
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
    """Why an arm is not there, or is gone; empty if all was well."""
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
    """`of 11 other figures no difference is shown`; empty if all are shown."""
    return f"of {left} other figures no difference is shown" if left else ""


def cache(run: Run) -> str:
    """How the prefix cache was made ready; empty if it was left as it is."""
    state = run.cache
    if state is None or state.policy == CARRY:
        return ""
    if state.policy == PRIMED:
        primed, total = sum(block.primed or 0 for block in state.blocks), sum(block.rollouts for block in state.blocks)
        return f"primed: {primed} of {total} first calls were made before measuring"
    resets = sum(not block.salt for block in state.blocks)
    salted = "".join(f"; prompts {f'of {name} ' if name else ''}were salted, because {why}" for name, why in state.salted.items())
    return f"cold: {resets} of {len(state.blocks)} blocks began with a reset{salted}"


# Serving


def timing_verdict(stopwatch: Stopwatch) -> str:
    """The stopwatch's verdict on itself, and what it means for gates."""
    if stopwatch.verdict is None:
        return "no verdict: no call was measured"
    return str(stopwatch.verdict) + (", timing gates are INCONCLUSIVE" if stopwatch.verdict == SATURATED else "")


def timing(stopwatch: Stopwatch) -> str:
    """How far the timings can be trusted and what to do about it, the verdict first; without figures."""
    return ": ".join(filter(None, (timing_verdict(stopwatch), "; ".join(stopwatch.reasons))))


def timing_of_run(stopwatch: Stopwatch) -> str:
    """`timings: warn: ...`."""
    return f"timings: {timing(stopwatch)}"


def timing_trouble(stopwatch: Stopwatch) -> str:
    """Whether the timings are of use at all, and where to read more."""
    what = "this machine could not keep up" if stopwatch.verdict == SATURATED else "not all of them are usable"
    return f"{stopwatch.verdict}: {what}, see report.md"


def timing_evidence(stopwatch: Stopwatch) -> str:
    """What the verdict on the timings stands on; empty if nobody knows."""
    if stopwatch.clean_share is None:
        return ""
    facts = [f"{percent(stopwatch.clean_share)} of the stamps clean"]
    if stopwatch.late_share:
        facts.append(f"{percent(stopwatch.late_share)} shared because they were read late")
        facts.append(f"those of {percent(stopwatch.late_calls_share)} of the calls")
    if stopwatch.read_lag_ms is not None:
        facts.append(f"read lag p99 {stopwatch.read_lag_ms:.2f} ms")
    if stopwatch.client_queue_ms is not None:
        facts.append(f"client queue p99 {stopwatch.client_queue_ms:.1f} ms")
    shares = (("tap", stopwatch.tap_cpu), ("pool", stopwatch.pool_cpu))
    facts += [f"{name} at most {percent(share)} of a core" for name, share in shares if share is not None]
    return ", ".join(facts)


def calls(performance: PerformanceSummary) -> str:
    """The calls behind the numbers."""
    failed = ", ".join(f"{amount} {kind}" for kind, amount in performance.failed_calls.items())
    all_calls = f"{performance.calls} LLM calls{f' ({failed})' if failed else ''} in {performance.span_s:.1f} s"
    sources, stamps = (", ".join(names) or "none" for names in (performance.token_sources, performance.stamps))
    return f"{all_calls}, token counts from {sources}, stamps: {stamps}"


def failed_calls(performance: PerformanceSummary) -> str:
    """`9 of 15 LLM calls: 9 cut`; empty if none failed."""
    return _failures(performance, "")


def failed_kind(kind: str, amount: int) -> str:
    """`9 cut: the stream ended before its end mark`: failed calls of a kind, with what the kind means."""
    return f"{amount} {kind}: {ERROR_KINDS.get(kind, 'unknown')}"


def high_latency(p90: float | None) -> str:
    """`p90 12.0 ms`; empty if too few calls were measured."""
    return "" if p90 is None else f"p90 {number(p90)} ms"


def tokens_and_calls(performance: PerformanceSummary) -> str:
    """`12,345 tokens of 62 calls in 1.1 s`."""
    return f"{performance.output_tokens:,} tokens of {performance.calls:,} calls in {performance.span_s:.1f} s"


def in_flight(performance: PerformanceSummary) -> str:
    """`in flight 8 peak, 7.8 mean`: rollouts."""
    flight = performance.rollouts_in_flight or InFlight(0, 0.0)
    return f"in flight {flight.peak} peak, {flight.mean:.1f} mean"


#: Metrics of a session that have a place of their own in reports, or none, as LLM calls/min. `throughput` lists all others.
NAMED_METRICS = (
    *("output_tokens_per_s", "rollouts_per_hour", "calls_per_minute", "speedup"),
    *("prefix_cache_hit_ratio", "call_prefix_cache_hit_ratio", "goodput_per_s"),
)


def throughput(performance: PerformanceSummary) -> str:
    """How much was served."""
    rates = {name: performance.number(name) for name in registry.rates()}
    ratio, of_calls = rates["prefix_cache_hit_ratio"], rates["call_prefix_cache_hit_ratio"]
    speedup = "" if rates["speedup"] is None else f" ({rates['speedup']:.2f} times the mean of a call)"
    others = [metric for name, metric in registry.rates().items() if name not in NAMED_METRICS and rates[name] is not None]
    return (
        f"{number(rates['output_tokens_per_s'])} output tok/s{speedup}, {number(rates['rollouts_per_hour'], 0)} rollouts/h, "
        f"{''.join(f'{number(rates[each.name], each.digits)} {each.title}, ' for each in others)}"
        f"prefix cache hit ratio {'unknown' if ratio is None else f'{ratio:.2f} ({of_calls:.2f} mean of calls)'}, "
        f"{in_flight(performance)}"
    )


def steady(performance: PerformanceSummary) -> str:
    """Rates of the time in which the concurrency asked for was there."""
    rates = performance.steady
    windows = (("rollouts", rates.rollouts), ("calls", rates.calls))
    return "; ".join(_steady(window, f"90 % of {rates.asked} {name} in flight") for name, window in windows)


def _steady(window: SteadyCalls | None, what: str) -> str:
    if window is None:
        return f"never {what}"
    per_hour = f", {number(window.rollouts_per_hour, 0)} rollouts/h" if isinstance(window, SteadyRollouts) else ""
    rates = f"{number(window.output_tokens_per_s)} output tok/s{per_hour}"
    return f"{rates} in the {seconds_text(window.seconds)} ({percent(window.share)}) with {what}"


def chosen_window(window: WindowSummary) -> str:
    """Rates of the window that the user chose, or that there is nothing in it."""
    ends = f"{window.start_s:g} s" + (" on" if window.end_s is None else f" to {window.end_s:g} s")
    if not window.seconds:
        return f"nothing was measured from {ends} after the first call: the run was over {window.run_s:.1f} s after it"
    if not window.calls:
        return f"no LLM call was sent from {ends} after the first one, in {seconds_text(window.seconds)}"
    failed = f" ({window.failed_calls} failed)" if window.failed_calls else ""
    measured = window.metrics
    rates = f"{number(measured['output_tokens_per_s'])} output tok/s, {number(measured['rollouts_per_hour'], 0)} rollouts/h"
    all_calls = f"{number(measured['calls_per_minute'])} LLM calls/min, {window.calls} LLM calls{failed}"
    return f"{rates}, {all_calls} in the {seconds_text(window.seconds)} from {ends} after the first call"


def goodput(value: GoodputSummary) -> str:
    """How many calls met all objectives."""
    objectives = ", ".join(f"{name} <= {limit:g} ms" for name, limit in value.slo_ms.items())
    of = value.good_calls + value.bad_calls
    missed = ", ".join(f"{amount} {name}" for name, amount in value.missed.items() if amount)
    return (
        f"{value.good_calls} of {of} calls good ({percent(value.attainment)}), "
        f"{number(value.goodput_per_s, 2)} good calls/s under {objectives}"
        f"{f'; missed: {missed}' if missed else ''}"
        f"{f'; {unknown} could not be judged' if (unknown := value.unknown_calls) else ''}"
    )


def split(value: Mapping[str, PartOfTime]) -> str:
    """Who had the time of the rollouts."""
    return ", ".join(f"{title} {percent(value[part].share)}" for part, title in PARTS.items() if part in value)


def few_values(performance: PerformanceSummary) -> str:
    """Why a table of latencies has dashes; empty if it has none."""
    tables = [table for table in performance.latencies.values() if table]
    if all(getattr(table, f"p{q}") is not None for table in tables for q in HIGH):
        return ""
    return f"A dash is too few values: {', '.join(f'p{q} needs {needed(q)}' for q in HIGH if q != 50)}."


def call_place(call: SlowCall) -> str:
    """`2 of 4, attempt 2`: which call of its attempt it was."""
    return f"{call.number} of {call.of}" + f", attempt {call.attempt}" * (call.attempt > 1)


# What servers say


def server_cache(serving: ServingSummary) -> str:
    """`prefix cache hit ratio 0.92 (vllm:prefix_cache_hits_total), 3 preemptions`."""
    found = serving.prefix_cache
    ratio = "unknown" if found.hit_ratio is None else f"{found.hit_ratio:.2f} ({found.source})"
    preemptions = "" if serving.preemptions is None else f", {serving.preemptions:.0f} preemptions"
    return f"prefix cache hit ratio {ratio}{preemptions}"


def server_load(serving: ServingSummary) -> str:
    """KV cache and requests, or that there were too few samples to say."""
    if serving.rounds < ENOUGH:
        return f"KV cache and requests: {_too_short(serving.rounds, serving.every_s)}"
    usage = serving.kv_usage
    used = "unknown" if usage.max is None else f"{percent(usage.mean)} mean, {percent(usage.max)} peak"
    return f"KV cache {used}; requests: running {_load(serving.running)}, waiting {_load(serving.waiting)}"


def sampling_gap(serving: ServingSummary) -> str:
    """How long nobody sampled the servers."""
    return f"up to {serving.longest_gap_s:.1f} s without a look, which should come every {serving.every_s:g} s"


def counter_resets(serving: ServingSummary) -> str:
    """`counters fell 2 times: something was started again`; empty if none fell."""
    return f"counters fell {serving.resets} times: something was started again" if serving.resets else ""


def gpu(use: GpuUse, every_s: float) -> str:
    """`40,000 of 81,559 MiB at most, 93.1 % busy, 512 W mean`, or that there were too few samples to say."""
    if use.looks < ENOUGH:
        return _too_short(use.looks, every_s)
    busy = "unknown how" if use.sm_percent_mean is None else f"{use.sm_percent_mean:.1f} %"
    watts = "power unknown" if use.power_w_mean is None else f"{number(use.power_w_mean, 0)} W mean"
    return f"{use.used_mib_max:,} of {use.total_mib:,} MiB at most, {busy} busy, {watts}"


def samples(serving: ServingSummary) -> str:
    """How many samples the numbers of servers are from, and where those are."""
    return f"From {serving.looks} looks, all of which are in samples.jsonl beside this file."


def _too_short(looks: int, every_s: float) -> str:
    """Why nothing is told of what changes from look to look."""
    times = f"{looks} look{'s' * (looks != 1)}" if looks else "no look"
    return f"too short to sample, {times} in the time of the calls (one comes every {every_s:g} s)"


def _load(load: Gauge) -> str:
    return "unknown" if load.max is None else f"{number(load.mean)} mean {load.max:.0f} peak"


# The setup


def backend(run: Run) -> Text:
    """The backend, its model, and how many rollouts in flight were asked for."""
    model = Code(run.backend.served_model) if run.backend.served_model else "unknown"
    asked = run.settings.concurrency or "an unknown number of"
    return Code(run.backend.name), ", model ", model, f", {asked} rollouts in flight asked for"


def boot(value: BackendUse) -> str:
    """How a stack came up, and what was asked of it before anything was counted; empty for backends that are no stacks."""
    facts = value.boot
    if facts is None:
        return ""
    reaped = f"; {value.reaped}" if value.reaped else ""
    if value.reused:
        return f"kept from an earlier session, so its caches are warm{reaped}"
    waited = f" after {facts.waited_for_gpus_s:.0f} s of waiting for GPUs" if facts.waited_for_gpus_s >= 1 else ""
    warm = facts.warm_up
    warmed = f"; {warm.requests} requests of warm-up in {warm.seconds:.1f} s, not counted" if warm.requests else "; no warm-up"
    other = f"; {value.passed_over}" if value.passed_over else ""
    return f"booted in {facts.boot_s - facts.waited_for_gpus_s:.1f} s{waited}, proofs {facts.proof_s:.1f} s{warmed}{other}{reaped}"


def command(words: Sequence[str]) -> Text:
    """A command line."""
    return Code(shlex.join(words), "command")


def settings(values: Mapping[str, Any]) -> Text:
    """Settings as they could stand in YAML; `none` of no settings."""
    return Code(json.dumps(dict(values), ensure_ascii=False, default=str), "command") if values else "none"


def suite_setup(suite: SuiteResult) -> Text:
    """Agent, thresholds and data set of a suite."""
    agent, thresholds = settings(suite.agent), settings(suite.thresholds)
    data = Code(suite.dataset.sha256 or "unknown", "command")
    return (*("agent ", *spans(agent)), *(", thresholds ", *spans(thresholds)), *(", data set sha256 ", data))


def machine(facts: Environment) -> str:
    """Python, platform, CPUs and the commit."""
    cpus = "an unknown number of" if facts.cpus is None else facts.cpus
    return f"Python {facts.python}, {facts.platform}, {cpus} CPUs, {commit(facts.git)}"


def commit(git: Git | None) -> str:
    """`git commit 0123456789ab, with changes that are not committed`."""
    if git is None:
        return "not in a git repository"
    return f"git commit {git.commit[:12]}{', with changes that are not committed' * git.dirty}"


def packages(facts: Environment) -> str:
    """Packages with their versions."""
    return ", ".join(f"{name} {version}" for name, version in facts.packages.items()) or "unknown"


# A rollout


def rollout(value: Rollout) -> str:
    """`banking[banking-001]  ok  tsq 0.333, hallucinated 0.000  0.20 s`."""
    scores = ", ".join(f"{name} {each!r}" for name, each in value.scores.items())
    return f"{value.key}  {value.status}  {scores or value.reason}  {value.duration_s:.2f} s"


def rollout_tools(value: Rollout) -> str:
    """`expected find_item, order_item; actual find_item`."""
    expected, actual = (", ".join(names) or "none" for names in (value.expected_tools, value.tools))
    return f"expected {expected}; actual {actual}"
