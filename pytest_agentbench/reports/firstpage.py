"""The first page of a run, which a session prints at its end: the verdict, why, and the numbers that everybody reads, one a line.

What goes well has about twelve lines; each further one is about something that did not. `agentbench show`, -v and report.md have the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from pytest_agentbench.metrics.performance import PerformanceSummary
from pytest_agentbench.metrics.stopwatch import SATURATED, WARN
from pytest_agentbench.reports import answers, scorer_failures
from pytest_agentbench.reports.comparison import COLOURS, arms_text, comparison_text, essentials, losses_text, whole
from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.reports.gates import NO_CLAIM, change_text, claims_of, gate_text, ranking_of, reason_text, result_text, worst_first
from pytest_agentbench.reports.outcome import Tone, headline, tone
from pytest_agentbench.reports.triage import kinds_text
from pytest_agentbench.reports.window_words import chosen_text
from pytest_agentbench.reports.words import (
    damage_lines,
    goodput_text,
    imported_lines,
    interruptions_text,
    number,
    restarts_text,
    resume_text,
    score_of,
    sessions_text,
    statuses_text,
    unknown_text,
)
from pytest_agentbench.runs.arm_results import ArmsCompared
from pytest_agentbench.runs.contents import OutcomeCounts, Run
from pytest_agentbench.runs.results import Mean, SuiteResult
from pytest_agentbench.runs.verdicts import GateResult, RoundsResult

WORST = 3  # scenarios with low scores, of all suites together
RULES = 6  # of the gate, the worst first
VERDICT = "verdict"
BY_HAND = "hand"  # the source of labels that somebody has read
#: Tone of a verdict -> the terminal's colour.
COLOUR_OF: Mapping[Tone, str] = {"good": "green", "bad": "red", "open": "yellow", "": ""}
WORDS = "docs/metrics.md"  # says what they mean


class PageRow(NamedTuple):
    """A line, or what has to be folded into several."""

    label: str
    text: str
    colour: str = ""
    shape: str = "folded"  # folded | cut | whole: a command, a path or a line of a log, which is to be copied


def rows(run: Run, shown: str) -> Iterator[PageRow]:
    """The page from top to bottom; `shown` is the run directory as the reader can open it."""
    first = headline(run)
    yield PageRow(VERDICT, str(first), COLOUR_OF[first.tone])
    yield from trouble_rows(run)
    if run.imported:
        yield PageRow("imported", next(imported_lines(run.imported)))
    yield from _gate(run.gate, run.rounds)
    yield from _arms(run.ab)
    if run.ab:  # the arms are compared above; a number over both of them would be about nothing
        yield from (PageRow(name, _rollouts_text(suite)) for name, suite in run.suites.items())
    else:
        yield from _suites(run.suites)
        yield from _speed(run.performance)
    yield from _timings(run)
    yield from (PageRow("model", sentence, "yellow") for sentence in run.backend.warnings)
    if resume := resume_text(run):
        yield PageRow("go on with", resume, "yellow", "whole")
    yield PageRow("report", f"{shown}/report.md", shape="whole")
    yield PageRow("more", f"agentbench show, or -v; {WORDS} explains every number")


def verdict_colour(verdict: str) -> str:
    """Returns the terminal's colour for a verdict; empty if it has none."""
    return COLOUR_OF[tone(verdict)]


def _failure(run: Run) -> Iterator[PageRow]:
    """Why the backend failed, which is told in all its lines by the first test that it keeps from running."""
    if failure := run.backend.failure:
        first, *others = [brief(failure)] if run.tests.errors else failure.split("\n")
        yield PageRow("backend", first, "red", "whole")
        yield from (PageRow("", f"    {other}", "red", "whole") for other in others)  # the end of a log may look like a section of ours


def trouble_rows(run: Run) -> Iterator[PageRow]:
    """What keeps a run from being one undisturbed session in which all was measured and all went well."""
    yield from _failure(run)
    yield from _tests(run.tests)
    if sessions := sessions_text(run):
        yield PageRow("resumed", sessions)
    yield from (PageRow("damaged", sentence, "yellow") for sentence in damage_lines(run))
    if interruptions := interruptions_text(run):
        yield PageRow("interrupted", interruptions, "yellow")
    if restarts := restarts_text(run.backend):
        yield PageRow("restarted", f"{restarts}, in the middle of the run", "yellow")
    if unknown := unknown_text(run):
        yield PageRow("not known", unknown, "red")
    if (window := run.performance.window) and not window.seconds:
        yield PageRow("window", chosen_text(window), "yellow")
    if run.plan.not_run:
        yield PageRow("not run", f"{run.plan.not_run} of {run.plan.rollouts} planned rollouts", "yellow")


def _tests(tests: OutcomeCounts) -> Iterator[PageRow]:
    words = {"failed": "failed", "errors": "could not be measured", "passed": "passed"}
    if tests.failed or tests.errors:
        yield PageRow("tests", ", ".join(f"{count} {word}" for name, word in words.items() if (count := getattr(tests, name))), "red")


def _gate(gate: GateResult | None, rounds: RoundsResult | None) -> Iterator[PageRow]:
    if gate is None:
        return
    yield PageRow("gate", gate_text(gate, rounds), verdict_colour(gate.verdict))
    for rule in worst_first(gate.rules)[:RULES]:
        yield PageRow("rule", result_text(rule), verdict_colour(rule.verdict))
        if reason := reason_text(rule):
            yield PageRow("", reason)
    yield from _more(len(gate.rules) - RULES)
    claims = [(score_of(rule), each) for rule in gate.rules for each in claims_of(rule)]
    yield from (PageRow("worse", change_text(*each)) for each in claims[:WORST])
    yield from _more(len(claims) - WORST)
    ranking = [(score_of(rule), each) for rule in gate.rules if rule.verdict == "FAIL" for each in ranking_of(rule)]
    yield from (PageRow("fell", change_text(*each)) for each in ranking[:WORST])
    if ranking:
        yield PageRow("", NO_CLAIM)


def _more(count: int) -> Iterator[PageRow]:
    if count > 0:
        yield PageRow("", f"and {count} more")


def _arms(ab: ArmsCompared | None) -> Iterator[PageRow]:
    """What is known to differ, and the first score of each suite, whatever is known of it."""
    if not ab:
        return
    yield PageRow("A/B", arms_text(ab))
    if losses := losses_text(ab):
        yield PageRow("", losses, "yellow")
    comparisons = essentials(ab)
    for each in comparisons:
        short = each if each.low is None else replace(each, reason="")  # an interval speaks for itself
        yield PageRow(each.suite, comparison_text(ab, short), COLOURS.get(each.finding, ""))
    if more := len(whole(ab)) - len(comparisons):
        yield PageRow("", f"of {more} other figures no difference is shown")
    yield from (PageRow("not equal", warning, "yellow") for warning in ab.warnings)


def _suites(suites: Mapping[str, SuiteResult]) -> Iterator[PageRow]:
    shown = WORST // len(suites) if suites else 0
    for name, suite in suites.items():
        yield PageRow(name, _rollouts_text(suite))
        for score in suite.scorers if len(suites) == 1 else suite.scorers[:1]:
            mean, scale = suite.scores[score].mean, suite.scales[score]
            has_news = mean is None or not scale.falling or mean.value != scale.best
            if has_news or score == suite.main_score:  # a second score that counts mistakes is shown if there were any
                yield PageRow(score, _mean_text(mean))
        yield from (PageRow(about, line) for about, line in answers.lines(suite))
        if (triage := suite.triage) and triage.faulty:
            yield PageRow("mistakes", kinds_text(triage))
        yield from (PageRow("no score", line, "yellow") for line in scorer_failures.lines(suite))
        if quarantined := len(suite.quarantined):
            yield PageRow("quarantined", f"{quarantined} of {suite.dataset.size} scenarios, in no gate", "yellow")
        if unsupported := len(suite.unsupported):
            yield PageRow("unsupported", f"{unsupported} of {suite.dataset.size} tasks ask for what is not supported", "yellow")
        for each in suite.worst[:shown]:
            question = f' "{each.question}"' if each.question else ""
            yield PageRow("worst", f"{each.id} {each.score:.3f}{question}", shape="cut")


def _rollouts_text(suite: SuiteResult) -> str:
    """`100 rollouts, all ok`, or `100 rollouts: 97 ok, 3 limit; labels: heuristic-v1`."""
    total = sum(suite.rollouts.values())
    how = "all ok" if total and total == suite.rollouts["ok"] else statuses_text(suite.rollouts)
    source = suite.dataset.label_source
    labels = "" if source == BY_HAND else f"; labels: {source}"
    return f"{total} rollout{'s' * (total != 1)}{',' if how == 'all ok' else ':'} {how}{labels}"


def _mean_text(mean: Mean | None) -> str:
    """`0.634 (95 % interval 0.584 to 0.676)`."""
    if mean is None:
        return "not measured"
    return f"{mean.value:.3f}" + ("" if mean.low is None else f" (95 % interval {mean.low:.3f} to {mean.high:.3f})")


def _speed(performance: PerformanceSummary) -> Iterator[PageRow]:
    if first := performance.latency("ttft"):
        yield PageRow("first token", f"{number(first.p50)} ms after the call (median)")
    if rate := performance.number("output_tokens_per_s"):
        yield PageRow("speed", f"{number(rate)} output tokens a second")
    if goodput := performance.goodput:
        yield PageRow("goodput", goodput_text(goodput))


def _timings(run: Run) -> Iterator[PageRow]:
    """What is wrong with them."""
    performance, stopwatch = run.performance, run.stopwatch
    if failed := sum(performance.failed_calls.values()):
        kinds = ", ".join(f"{count} {kind}" for kind, count in performance.failed_calls.items())
        yield PageRow("failed", f"{failed} of {performance.calls} LLM calls: {kinds}", "yellow")
    if stopwatch.verdict == SATURATED:
        yield PageRow("timings", f"{SATURATED}: this machine could not keep up, see report.md", "red")
    elif stopwatch.verdict == WARN:
        yield PageRow("timings", f"{WARN}: not all of them are usable, see report.md", "yellow")
