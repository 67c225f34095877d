"""The sentences of all reports about a run, and how reports write numbers.

A phrase is a function that turns typed values into a sentence. Sections combine a phrase and its values to a `Finding`; renderers put it
into the terminal, Markdown and HTML. The docstring of a phrase is an example of its text, or says what the text is about.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_agentbench.gate.exit_status import SKIPPED
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports.document import Code, Column, Content, Finding, Measure, TableCell, Text, spans, words_of
from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.results import EarlierRuns, Mean, SuiteResult
from pytest_agentbench.runs.run_file import BackendUse, Environment, Failure, OwnMean, Playback, Run
from pytest_agentbench.stats.quantiles import LatencySpread


def number(value: Any, digits: int = 1) -> str:
    """Formats a number, for example `1,234.5`, or `-` for None. A string is returned unchanged."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.{digits}f}"


def short(value: float) -> str:
    """Formats a number with one decimal place, or a small one (`0.012`) with two significant digits, so that it does not become 0.0."""
    small = 1e-9 < abs(value) < 0.05
    return number(value, 1 - math.floor(math.log10(abs(value))) if small else 1)


def significant(value: float | None) -> str:
    """Formats a number with four significant digits and at least one decimal place, or `-` for None."""
    return number(value, max(1, 3 - math.floor(math.log10(abs(value)))) if value else 1)


def general(value: float) -> str:
    """Formats any number: four significant digits, whole numbers from 1,000 on, no exponent, and 0 for an error of rounding (2.8e-18)."""
    if abs(value) < 1e-9:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def percent(share: float | None) -> str:
    """Formats a share, for example `99.9 %`, or `-` for None. Rounding never turns a partial share into 100 % or 0 %."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "below 0.1 %"
    return f"{min(share * 100, 99.9) if share < 1 else share * 100:.1f} %"


def brackets(interval: tuple[float, float] | None) -> str:
    """Formats an interval, for example `[11.0, 13.5]`. Empty for None."""
    return "" if interval is None else f"[{number(interval[0])}, {number(interval[1])}]"


def seconds_text(seconds: float) -> str:
    """Formats a duration in seconds, or in milliseconds if it is shorter than 0.1 s."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def each_count(amounts: Mapping[str, int]) -> str:
    """Formats counts, for example `97 ok, 3 limit`. Zeros are left out."""
    return ", ".join(f"{amount:,} {name}" for name, amount in amounts.items() if amount)


def joined_lines(text: str) -> str:
    """Returns a text of several lines, such as the message of a failed assertion, as one line."""
    return " ".join(filter(None, map(str.strip, text.split("\n"))))


def count(amount: int, noun: str) -> str:
    """Returns a number and its noun, for example `1 test` or `2 tests`."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"


NAMED = 3  # suites named in a headline, and scenarios named in a line

SESSION_RATES = "Rates are over the time of all sessions, without the pauses between them."

DERIVED = "All numbers here can be derived from rollouts.jsonl in this directory."

UNRECORDED = "The machine and the packages of this run are not recorded."

COMPARISON = "The comparison"

RUNS_COMPARED = "Runs side by side"

ARMS = "Arms side by side"

WHOLE_REPORT = "The whole report"

IN_RUN_JSON = "in run.json"

MEANS_MAY_MOVE = "Short rollouts end first, so the means may still change. Intervals and the verdict follow when the run has ended."


def measure(value: Measure) -> str:
    """`10.3 ms, median (95 % interval 9.6 to 10.9); p90 12.0 ms`: a measure in one line."""
    known = ", ".join(filter(None, (" ".join(filter(None, (figure(value), unit_of(value)))), value.statistic)))
    return "; ".join(filter(None, (known + (f" ({text})" if (text := interval(value)) else ""), value.about)))


def words(content: Content) -> Text:
    """Returns the sentence of a finding, or a measure in one line. A text is returned unchanged."""
    content_words = words_of(content)
    return measure(content_words) if isinstance(content_words, Measure) else content_words


def cell(value: TableCell, column: Column) -> Text:
    """Returns the text of a table cell. A number gets the decimal places of its column, and None becomes a dash."""
    if value is None:
        return "-"
    return number(value, column.digits or 0) if isinstance(value, int | float) else words(value)


def figure(value: Measure) -> str:
    """Returns the number of a measure without its unit: `11.3`, or `95.9 %` for a share."""
    if value.value is None:
        return "not measured"
    return percent(value.value) if value.unit == "%" else _digits(value.value, value)


def unit_of(value: Measure) -> str:
    """Returns the unit of a measure. Empty for a share, because `figure` adds the percent sign, and if nothing was measured."""
    return "" if value.unit == "%" or value.value is None else value.unit


def interval(value: Measure) -> str:
    """`95 % interval 9.6 to 10.9`: the interval of a measure. Empty if it has none."""
    if value.low is None or value.high is None:
        return ""
    return f"95 % interval {_digits(value.low, value)} to {_digits(value.high, value)}"


def _digits(number_: float, of: Measure) -> str:
    return short(number_) if of.digits == 1 else number(number_, of.digits)


def mean(value: Mean | None) -> str:
    """`0.612 [0.571, 0.653]`: a mean with its 95 % interval over scenarios."""
    if value is None:
        return "not measured"
    ends = "(no interval)" if value.low is None else f"[{value.low:.3f}, {value.high:.3f}]"
    return f"{value.value:.3f} {ends}"


def with_interval(value: float, ends: tuple[float, float] | None) -> str:
    """`12.0 [11.0, 13.5]`: a number with its interval, or only the number if there is no interval."""
    return f"{number(value)} {brackets(ends)}".rstrip()


def ends(low: float, high: float) -> str:
    """`0.111 to 0.889`: an interval without its estimate."""
    return f"{low:.3f} to {high:.3f}"


def median_and_p95(spread: LatencySpread | None) -> str:
    """`12.0, 25.0`: median and 95th percentile of a latency, or `-` for None."""
    return "-" if spread is None else f"{number(spread.p50)}, {number(spread.p95)}"


def more(amount: int, what: str = "") -> str:
    """`and 4 more`, the number of items that a list leaves out. Empty if it leaves out none."""
    return f"and {amount} more{f' {what}' if what else ''}" if amount > 0 else ""


def earlier_runs(earlier: EarlierRuns | None) -> str:
    """`the 3rd run of this setup, 2 before it were not PASS`: a warning about repeated tries. Empty if every earlier run was PASS."""
    if not earlier or not earlier.not_passed:
        return ""
    place, failed = earlier.runs + 1, len(earlier.not_passed)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"the {place}{ending} run of this setup, {failed} before it {'were' if failed > 1 else 'was'} not PASS"


def playback(used: Playback) -> str:
    """`309 requests answered, 0 not recorded; 12 of 309 recorded calls were not asked for`: how a recording was used."""
    by_place = f" ({used.by_place:,} by their place, because the recorded text is redacted)" if used.by_place else ""
    answered = f"{count(used.by_content + used.by_place, 'request')} answered{by_place}, {used.missed:,} not recorded"
    return f"{answered}; {used.unasked:,} of {count(used.played_calls, 'recorded call')} of these rollouts were not asked for"


def backend_failure(run: Run) -> str:
    """Returns why the backend failed, in one line. The report of the first test that the failure prevented has the whole text."""
    failure = run.backend.failure
    return brief(failure) if run.tests.errors else failure.partition("\n")[0]


def tests(run: Run) -> str:
    """`1 failed, 2 could not be measured, 9 passed`: the number of tests by result. Empty if none failed or had an error."""
    words = {"failed": "failed", "errors": "could not be measured", "passed": "passed"}
    if not run.tests.failed and not run.tests.errors:
        return ""
    return ", ".join(f"{amount} {word}" for name, word in words.items() if (amount := getattr(run.tests, name)))


def failures_of_test(failed: Sequence[Failure]) -> Text:
    """`test_polite failed 4 times, first for c2: assert 0.000 >= 1.0`: the failures of one test function, which reads rollouts or not."""
    first = failed[0]
    function, _, case = first.id.rpartition("::")[2].partition("[")
    where = f"for {case.removesuffix(']')}: " if case else ""
    times = f"failed {len(failed):,} times, first {where}" if len(failed) > 1 else f"failed {where}".rstrip(" :") + ": "
    return (Code(function), f" {times}", Code(brief(first.message.partition("\n")[0])))


def sessions(run: Run) -> str:
    """Returns how many rollouts of a resumed run each session ran. Empty for a run of one session."""
    if len(run.sessions) < 2:
        return ""
    *earlier, last = run.sessions
    parts = [f"{each.rollouts} from session {each.session} ({each.started_at})" for each in earlier]
    again = f"; {run.repeated} of them had failed before and ran again" if run.repeated else ""
    levels = {each.concurrency for each in run.sessions if each.rollouts}
    mixed = f"; NOT at one concurrency: {', '.join(map(str, sorted(levels)))} rollouts in flight" if len(levels) > 1 else ""
    return f"{last.session} sessions: {', '.join(parts)}, {last.rollouts} from this one{again}{mixed}"


def interruptions(run: Run) -> str:
    """`pool 2, tap 1; 9 attempts were run again`: how often each process of the session died. Empty if none died."""
    parts = [f"{part} {amount}" for part, amount in run.interruptions.deaths.items()]
    attempts = run.interruptions.attempts
    again = f"{attempts} attempt{'s were' if attempts != 1 else ' was'} run again"
    return f"{', '.join(parts)}; {again}" if parts else ""


def restarts(backend: BackendUse) -> str:
    """`engine once, worker-1 3 times, in the middle of the run`: the restarts of services of the stack. Empty without restarts."""
    counts = backend.restarts or {}
    services = ", ".join(f"{name} {'once' if amount == 1 else f'{amount} times'}" for name, amount in counts.items())
    return f"{services}, in the middle of the run" if services else ""


def unknown_suites(run: Run) -> str:
    """Names the suites that have thresholds, but no measured rollout. Empty if there are none."""
    names = run.unknown_suites if run.verdict != SKIPPED else ()
    return f"{', '.join(names)}: no rollout was measured, so the thresholds were not checked" if names else ""


def not_run(run: Run) -> str:
    """`2 of 8 planned rollouts`: those that were not run. Empty if all were run."""
    return f"{run.plan.not_run} of {run.plan.rollouts} planned rollouts" if run.plan.not_run else ""


def progress(run: Run) -> str:
    """`6 of 8 planned rollouts finished, 2 not run`: the progress of a run."""
    plan = run.plan
    return f"{plan.finished} of {plan.rollouts} planned rollouts finished" + (f", {plan.not_run} not run" if plan.not_run else "")


def exit_status(run: Run) -> str:
    """`exit status 1`: the status of the pytest session. Empty for an imported run, which has no session."""
    return "" if run.exit_status is None else f"exit status {run.exit_status}"


def what_to_show(run: Run, place: str) -> Text:
    """`agentbench show 20260304-050607 --failed`: the command that prints the failed rollouts, the worst one, or the whole run."""
    name = run.id if place == f"reports/{run.id}" else shlex.quote(place)
    ended_badly = sum(amount for suite in run.suites.values() for status, amount in suite.rollouts.items() if status != "ok")
    worst = next((each.id for suite in run.suites.values() for each in suite.worst), "")
    what = "--failed" if run.tests.failed or run.tests.errors or ended_badly else shlex.quote(worst) if worst else ""
    return (Code(f"agentbench show {name} {what}".rstrip(), "command"),)


def files(directory: str) -> Text:
    """`reports/latest/report.html (and report.md, run.json, rollouts.jsonl)`: the page of a run, and the other files beside it."""
    return (Code(f"{directory}/report.html", "command"), " (and report.md, run.json, rollouts.jsonl)")


def imported(run: Run) -> str:
    """Returns which tool made the results of an imported run, and from which path and when they were read. Empty for other runs."""
    origin = run.imported
    return f"by {origin.tool}, from {origin.path}, read {origin.at}" if origin else ""


def own_mean(value: OwnMean) -> str:
    """`shop harbor_reward: mean 0.500 according to the tool, 1.000 in this run: Harbor counts ...`: two means of a score.

    One is in the results of the tool, the other was computed from the imported rollouts. If they differ, the reason follows.
    """
    ours = "none in this run" if value.ours is None else f"{value.ours:.3f} in this run"
    other = f", {ours}: {value.why}" if value.why else " and in this run"
    return f"{value.suite} {value.score}: mean {value.theirs:.3f} according to the tool{other}"


def section_failure(plugin: str, error: Exception) -> str:
    """Returns the error because of which the section of a plugin could not be created."""
    return f"The section of {plugin} could not be created: {type(error).__name__}: {error}"


def about_suite(name: str, finding: Finding) -> Text:
    """`banking: 63 of 100 rollouts have a mistake`: a finding of one of several suites."""
    return (f"{name}: ", *spans(finding.words))


def running(ended: int) -> str:
    """`running, 12 rollouts finished`: the headline of a run that has a running session."""
    return f"running, {count(ended, 'rollout')} finished"


def stopped(ended: int) -> str:
    """`stopped, 12 rollouts finished`: the headline of a run that has not ended and has no running session."""
    return f"stopped, {count(ended, 'rollout')} finished"


def session_began(number: int, at: str, concurrency: int) -> str:
    """`session 2 began at 2026-01-02T03:04:05, 8 rollouts in flight at most`: the last session of a run."""
    return f"session {number} began at {at}, {concurrency} rollouts in flight at most"


def mean_so_far(rollouts: int) -> str:
    """`mean of 12 so far`: the number of rollouts behind a mean while the run has not ended."""
    return f"mean of {rollouts:,} so far"


def failed_so_far(calls: int) -> str:
    """`2 failed`: the number of failed calls while the run has not ended."""
    return f"{calls:,} failed"


def how_to_resume(name: str) -> Text:
    """Returns how to resume a run that has no running session."""
    option = Code(f"--agentbench-resume={name}", "command")
    return "No session is running rollouts: the last one is writing its reports, or was killed. To resume the run: ", option, "."


def backend(run: Run) -> Text:
    """Returns the backend, its model, and the configured concurrency."""
    model = Code(run.backend.served_model) if run.backend.served_model else "unknown"
    concurrency = run.settings.concurrency or "unknown"
    return Code(run.backend.name), ", model ", model, f", concurrency {concurrency}"


def boot(value: BackendUse) -> str:
    """Returns how long a stack took to boot, and which checks and warm-up requests came before measuring. Empty if there is no stack."""
    facts = value.boot
    if facts is None:
        return ""
    leftovers = f"; {value.reaped}" if value.reaped else ""
    if value.reused:
        return f"kept from an earlier session, so its caches are warm{leftovers}"
    waited = f" after waiting {facts.waited_for_gpus_s:.0f} s for GPUs" if facts.waited_for_gpus_s >= 1 else ""
    waited += f" after waiting {facts.queue_s:.0f} s for machines" if facts.queue_s >= 1 else ""
    warm = facts.warm_up
    warmed = f"; {warm.requests} warm-up requests in {warm.seconds:.1f} s, not counted" if warm.requests else "; no warm-up"
    other = f"; {value.passed_over}" if value.passed_over else ""
    booted = f"booted in {facts.boot_s - facts.waited_for_gpus_s - facts.queue_s:.1f} s{waited}"
    return f"{booted}, readiness checks {facts.proof_s:.1f} s{warmed}{other}{leftovers}"


def command(words: Sequence[str]) -> Text:
    """Returns a command line, quoted for a shell."""
    return Code(shlex.join(words), "command")


def settings(values: Mapping[str, Any]) -> Text:
    """Returns settings as JSON, which is also valid YAML, or `none`."""
    return Code(json.dumps(dict(values), ensure_ascii=False, default=str), "command") if values else "none"


def suite_setup(suite: SuiteResult) -> Text:
    """Returns the agent settings, thresholds and data set of a suite."""
    agent, thresholds = settings(suite.agent), settings(suite.thresholds)
    data = Code(suite.dataset.sha256 or "unknown", "command")
    return (*("agent ", *spans(agent)), *(", thresholds ", *spans(thresholds)), *(", data set sha256 ", data))


def machine(facts: Environment) -> str:
    """Returns Python version, platform, number of CPUs and the commit of the working directory."""
    cpus = "an unknown number of" if facts.cpus is None else facts.cpus
    return f"Python {facts.python}, {facts.platform}, {cpus} CPUs, {commit(facts.git)}"


def commit(git: Git | None) -> str:
    """`git commit 0123456789ab, with uncommitted changes`: the code that was measured."""
    if git is None:
        return "not in a git repository"
    return f"git commit {git.commit[:12]}{', with uncommitted changes' * git.dirty}"


def packages(facts: Environment) -> str:
    """Returns the packages with their versions."""
    return ", ".join(f"{name} {version}" for name, version in facts.packages.items()) or "unknown"


def rollout(value: Rollout) -> str:
    """`banking[banking-001]  ok  tsq 0.333, hallucinated 0.000  0.20 s`: a rollout, with the reason of its status if it has no scores."""
    scores = ", ".join(f"{name} {each!r}" for name, each in value.scores.items())
    return f"{value.key}  {value.status}  {scores or value.reason}  {value.duration_s:.2f} s"


def expected_and_actual(expected: Sequence[str], actual: Sequence[str]) -> str:
    """`expected find_item, order_item; actual find_item`: the tools of a rollout."""
    return f"expected {', '.join(expected) or 'none'}; actual {', '.join(actual) or 'none'}"
