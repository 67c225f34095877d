"""The words of reports: numbers as all reports write them, and a function for each kind of finding."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_agentbench.gate.exit_status import CANNOT_TELL, EXITS, NO_GATE, SKIPPED
from pytest_agentbench.gate.rules import scenario_thresholds
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports.document import Code, Column, Content, Finding, Measure, TableCell, Text, spans, words_of
from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.results import EarlierRuns, Mean, SuiteResult
from pytest_agentbench.runs.run_file import BackendUse, Environment, OwnMean, Run
from pytest_agentbench.stats.decisions import INCONCLUSIVE, PASS
from pytest_agentbench.stats.quantiles import LatencySpread


def number(value: Any, digits: int = 1) -> str:
    """Returns a number for a table, and `-` if there is none. A word stays as it is."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.{digits}f}"


def significant(value: float | None) -> str:
    """Returns a number of any size with four significant digits and at least one behind the point; `-` if there is none."""
    return number(value, max(1, 3 - math.floor(math.log10(abs(value)))) if value else 1)


def percent(share: float | None) -> str:
    """Returns `99.9 %`, and `-` if there is no share. What is below 1 is never `100 %`, and what is above 0 is never `0 %`."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "below 0.1 %"
    return f"{min(share * 100, 99.9) if share < 1 else share * 100:.1f} %"


def brackets(interval: tuple[float, float] | None) -> str:
    """Returns `[11.0, 13.5]`, and an empty text if there is no interval."""
    return "" if interval is None else f"[{number(interval[0])}, {number(interval[1])}]"


def seconds_text(seconds: float) -> str:
    """Returns seconds; if they are less than a tenth, as milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def each_count(amounts: Mapping[str, int]) -> str:
    """Returns `97 ok, 3 limit`; what did not happen is left out."""
    return ", ".join(f"{amount} {name}" for name, amount in amounts.items() if amount)


def count(amount: int, noun: str) -> str:
    """Returns `1 test`, and `2 tests`."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"


NAMED = 3  # suites that a headline names, and scenarios that a line names

#: Status of a rollout -> the words for its share in a headline.
ENDINGS = {
    "limit": "ended at a limit",
    "agent_error": "ended as agent_error",
    "infra_error": "ended as infra_error",
    "cancelled": "were cancelled",
}

SESSION_RATES = "Rates are over the time of all sessions, without the pauses between them."

DERIVED = "every number here can be derived again from rollouts.jsonl beside this file"

UNRECORDED = "what it ran on is not recorded"

COMPARISON = "The comparison"

WHOLE_REPORT = "The whole report"

IN_RUN_JSON = "in run.json"

MORE = "agentbench show, or -v; docs/metrics.md explains every number"

MEANS_MAY_MOVE = "Short rollouts end first, so the means may move; intervals and the verdict come when the run has ended."


def measure(value: Measure) -> str:
    """`11.3 ms, median (95 % interval 9.6 to 10.9); p90 12.0 ms`."""
    known = ", ".join(filter(None, (" ".join(filter(None, (figure(value), unit_of(value)))), value.statistic)))
    return "; ".join(filter(None, (known + (f" ({text})" if (text := interval(value)) else ""), value.about)))


def words(content: Content) -> Text:
    """A content in words."""
    content_words = words_of(content)
    return measure(content_words) if isinstance(content_words, Measure) else content_words


def cell(value: TableCell, column: Column) -> Text:
    """A cell of a table in words: a number has the digits of its column, and nothing is a dash."""
    if value is None:
        return "-"
    return number(value, column.digits or 0) if isinstance(value, int | float) else words(value)


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
    return f"{number(value)} {brackets(ends)}".rstrip()


def ends(low: float, high: float) -> str:
    """`0.111 to 0.889`."""
    return f"{low:.3f} to {high:.3f}"


def median_and_p95(spread: LatencySpread | None) -> str:
    """`12.0, 25.0`, and `-` for what is not known."""
    return "-" if spread is None else f"{number(spread.p50)}, {number(spread.p95)}"


def more(amount: int, what: str = "") -> str:
    """`and 4 more`, of what a list has left out. The text is empty if that is nothing."""
    return f"and {amount} more{f' {what}' if what else ''}" if amount > 0 else ""


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
    return "no test applies a threshold" if any(map(_has_scenario_threshold, run.suites.values())) else "no rule or threshold was applied"


def _notes(run: Run) -> Iterator[str]:
    gate_result = run.gate
    if gate_result and run.verdict not in (gate_result.verdict, NO_GATE):
        yield f"gate {gate_result.verdict}"
    if run.verdict in (PASS, INCONCLUSIVE):
        covered = {each.suite for each in gate_result.rules} if gate_result else set()
        without_rule = [group for group, suite in run.suites.items() if group not in covered and not _has_scenario_threshold(suite)]
        left = len(without_rule) - NAMED
        yield from (f"no rule for {', '.join(without_rule[:NAMED])}{f' and {left} more' if left > 0 else ''}",) if without_rule else ()
    if tries := earlier_runs(run.earlier):
        yield tries


def _has_scenario_threshold(suite: SuiteResult) -> bool:
    return bool(scenario_thresholds(suite.thresholds))


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
    """`the 3rd run of this setup, 2 before it were not PASS`. The text is empty if every earlier run was PASS."""
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
    """`1 failed, 2 could not be measured, 9 passed`. The text is empty if all passed."""
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
    """`pool 2, tap 1; 9 attempts were run again`. The text is empty if no part of the session died."""
    parts = [f"{part} {amount}" for part, amount in run.interruptions.deaths.items()]
    attempts = run.interruptions.attempts
    again = f"{attempts} attempt{'s were' if attempts != 1 else ' was'} run again"
    return f"{', '.join(parts)}; {again}" if parts else ""


def restarts(backend: BackendUse) -> str:
    """`engine once, worker-1 3 times, in the middle of the run`. The text is empty if nothing was started again."""
    counts = backend.restarts or {}
    services = ", ".join(f"{name} {'once' if amount == 1 else f'{amount} times'}" for name, amount in counts.items())
    return f"{services}, in the middle of the run" if services else ""


def unknown_suites(run: Run) -> str:
    """Suites of which nothing was measured although thresholds are asked of them. The text is empty if that is as it should be."""
    names = run.unknown_suites if run.verdict != SKIPPED else ()
    return f"{', '.join(names)}: no rollout was measured, so no threshold is known to hold" if names else ""


def not_run(run: Run) -> str:
    """`2 of 8 planned rollouts`. The text is empty if all were run."""
    return f"{run.plan.not_run} of {run.plan.rollouts} planned rollouts" if run.plan.not_run else ""


def progress(run: Run) -> str:
    """`8 rollouts, 6 finished, 2 not run`."""
    plan = run.plan
    return f"{plan.rollouts} rollouts, {plan.finished} finished, {plan.not_run} not run"


def exit_status(run: Run) -> str:
    """`exit status 1`; empty for a run that no session of ours made."""
    return "" if run.exit_status is None else f"exit status {run.exit_status}"


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


def about_suite(name: str, finding: Finding) -> Text:
    """A finding of one of several suites: `banking: 63 of 100 rollouts have a mistake`."""
    return (f"{name}: ", *spans(finding.words))


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


def backend(run: Run) -> Text:
    """The backend, its model, and how many rollouts in flight were asked for."""
    model = Code(run.backend.served_model) if run.backend.served_model else "unknown"
    concurrency = run.settings.concurrency or "an unknown number of"
    return Code(run.backend.name), ", model ", model, f", {concurrency} rollouts in flight asked for"


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


def rollout(value: Rollout) -> str:
    """`banking[banking-001]  ok  tsq 0.333, hallucinated 0.000  0.20 s`."""
    scores = ", ".join(f"{name} {each!r}" for name, each in value.scores.items())
    return f"{value.key}  {value.status}  {scores or value.reason}  {value.duration_s:.2f} s"


def expected_and_actual(expected: Sequence[str], actual: Sequence[str]) -> str:
    """`expected find_item, order_item; actual find_item`: tools."""
    return f"expected {', '.join(expected) or 'none'}; actual {', '.join(actual) or 'none'}"
