"""The section that pytest prints when a session with rollouts ends."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from pytest_agentbench.backends.telemetry.engine_stats import ServingSummary
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import PerformanceSummary
from pytest_agentbench.metrics.stopwatch import OK, SATURATED, Stopwatch
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import answers, roles, scorer_failures
from pytest_agentbench.reports.columns import columns, cut, fold
from pytest_agentbench.reports.comparison import cache_text, comparison_lines
from pytest_agentbench.reports.firstpage import VERDICT, PageRow, rows, trouble_rows, verdict_colour
from pytest_agentbench.reports.gates import NO_CLAIM, claim_lines, detail_lines, gate_text, look_lines, ranking_lines, rule_text
from pytest_agentbench.reports.outcome import headline
from pytest_agentbench.reports.tasks import failure_lines, tasks_text
from pytest_agentbench.reports.triage import confusion_text, faulty_text, kinds_text
from pytest_agentbench.reports.window_words import chosen_text, steady_text
from pytest_agentbench.reports.words import (
    COLUMNS,
    boot_text,
    calls_text,
    costs_text,
    dataset_text,
    doubt_lines,
    draft_lines,
    efficiency_text,
    failed_lines,
    few_text,
    goodput_text,
    imported_lines,
    mean_text,
    number,
    passes_text,
    quarantine_text,
    range_text,
    resume_text,
    retried_text,
    score_text,
    server_lines,
    split_text,
    statuses_text,
    stopwatch_text,
    throughput_text,
    tools_text,
    unsupported_text,
)
from pytest_agentbench.runs.contents import BackendUse, Run
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.runs.tasks import TasksSummary
from pytest_agentbench.runs.triage import Triage
from pytest_agentbench.runs.verdicts import GateResult, RoundsResult
from pytest_agentbench.stats.percentiles import LatencySpread

WIDTH = 80  # columns, where nobody knows
CONFUSED = 3  # pairs of tools
LABEL = 11  # columns that labels have at least


class TerminalReporter(Protocol):
    """What is written to: pytest's terminal reporter, or one like it."""

    def write_sep(self, sep: str, title: str, **markup: bool) -> None: ...

    def write_line(self, line: str, **markup: bool) -> None: ...


class OneLine:
    """A terminal on which nothing that is written can begin a line of its own, or do anything but be read."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self._terminal = terminal

    def write_sep(self, sep: str, title: str, **markup: bool) -> None:
        self._terminal.write_sep(sep, one_line(title), **markup)

    def write_line(self, line: str, **markup: bool) -> None:
        self._terminal.write_line(one_line(line), **markup)


def write_section(
    terminal: TerminalReporter, run: Run, path: str, verbosity: int = 0, width: int = WIDTH, rollouts: Iterable[str] = ()
) -> None:
    """One line under -q, the first page otherwise, everything with -v and each rollout too, with -vv the tools of each.

    `rollouts` are the `rollout_lines` of all of them.
    """
    if verbosity < 0:
        terminal.write_line(f"agentbench: {_in_one_line(run)} ({path}/report.md)")
        if resume := resume_text(run):
            terminal.write_line(f"agentbench: go on with {resume}")
        return
    terminal.write_sep("=", "agentbench", bold=True)
    if verbosity == 0:
        write_rows(terminal, [*rows(run, path)], width)
        return
    write_whole(terminal, run, path, rollouts)


def write_rows(terminal: TerminalReporter, page: Sequence[PageRow], width: int) -> None:
    """Labels in a column, texts beside them in what is left of the width."""
    column = min(max([LABEL, *(columns(row.label) for row in page)]), width // 3)
    for row in page:
        label, text = one_line(row.label), one_line(row.text)
        room = max(width - max(column, columns(label)) - 1, width // 3)
        lines = {"whole": [text], "cut": [cut(text, room)]}.get(row.shape) or fold(text, room)
        for line in lines:
            colour = {row.colour: True} if row.colour else {}
            terminal.write_line(f"{label:<{column}} {line}".rstrip(), bold=label == VERDICT, **colour)
            label = ""


def write_whole(terminal: TerminalReporter, run: Run, shown: str, rollouts: Iterable[str] = ()) -> None:
    """All that a run says of itself, a line each however long, but for what only report.md has."""
    first = headline(run)
    terminal.write_line(f"verdict     {first}", bold=True, **_colour(first.verdict))
    write_rows(terminal, [*trouble_rows(run)], sys.maxsize)
    for line in imported_lines(run.imported) if run.imported else ():
        terminal.write_line(f"imported    {line}")
    for name, suite in run.suites.items():
        _write_suite(terminal, name, suite)
    if len(run.suites) > 1 and run.costs:
        terminal.write_line(f"cost        {costs_text(run.costs)}, all suites together")
    for line in rollouts:
        terminal.write_line(line)
    _write_performance(terminal, run.performance, run.stopwatch, arms=run.ab is not None)
    if run.serving:
        _write_serving(terminal, run.serving)
    _write_comparison(terminal, run)
    if run.gate:
        write_gate(terminal, run.gate, run.rounds)
    _write_backend(terminal, run.backend)
    if resume := resume_text(run):
        terminal.write_line(f"go on with  {resume}", yellow=True)
    terminal.write_line(f"report      {shown}/report.md (and run.json, rollouts.jsonl)")


def write_gate(terminal: TerminalReporter, gate: GateResult, rounds: RoundsResult | None = None) -> None:
    """The verdict, then each rule with all that is known of it, then the scenarios that got worse, and those that may have.

    `rounds` of trials, where their number was not fixed, come with what was seen after each.
    """
    terminal.write_line(f"gate        {gate_text(gate, rounds)}", bold=True, **_colour(gate.verdict))
    for rule in gate.rules:
        terminal.write_line(f"rule        {rule_text(rule)}", **_colour(rule.verdict))
        for line in detail_lines(rule):
            terminal.write_line(f"{'':<11} {line}")
    for line in look_lines(rounds):
        terminal.write_line(f"round       {line}")
    for line in claim_lines(gate):
        terminal.write_line(f"worse       {line}")
    ranking = [*ranking_lines(gate)]
    for line in ranking:
        terminal.write_line(f"fell        {line}")
    if ranking:
        terminal.write_line(f"{'':<11} {NO_CLAIM}")


def _colour(verdict: str) -> dict[str, bool]:
    return {colour: True} if (colour := verdict_colour(verdict)) else {}


def _write_comparison(terminal: TerminalReporter, run: Run) -> None:
    if text := cache_text(run):
        terminal.write_line(f"cache       {text}")
    for about, line, colour in comparison_lines(run):
        terminal.write_line(f"{about:<11} {line}", **({colour: True} if colour else {}))


def _write_backend(terminal: TerminalReporter, backend: BackendUse) -> None:
    if booted := boot_text(backend):
        terminal.write_line(f"stack       {booted}")
    if backend.note:
        terminal.write_line(f"backend     {backend.name}: {backend.note}")
    for sentence in backend.warnings:
        terminal.write_line(f"model       {sentence}", yellow=True)


def _in_one_line(run: Run) -> str:
    rules = [rule_text(rule) for rule in gate.rules if rule.verdict != "PASS"] if (gate := run.gate) else []
    verdict = [f"gate {gate.verdict}"] if gate else []
    return "; ".join([headline(run).short, *verdict, *rules])


def _write_suite(terminal: TerminalReporter, name: str, suite: SuiteResult) -> None:
    terminal.write_line(f"{name}", bold=True)
    terminal.write_line(f"data set    {dataset_text(suite)}")
    terminal.write_line(f"rollouts    {statuses_text(suite.rollouts)}")
    if retried := retried_text(suite):
        terminal.write_line(f"retried     {retried}")
    if quarantined := quarantine_text(suite):
        terminal.write_line(f"quarantined {quarantined}", yellow=True)
    if unsupported := unsupported_text(suite):
        terminal.write_line(f"unsupported {unsupported}", yellow=True)
    _write_scores(terminal, suite)
    _write_tasks(terminal, suite.tasks)
    for kind in suite.sandboxes:
        terminal.write_line(f"sandbox     {kind}")
    _write_mistakes(terminal, suite.triage)
    for line in scorer_failures.lines(suite):
        terminal.write_line(f"no score    {line}", yellow=True)
    for about, line in (*answers.lines(suite), *draft_lines(suite), *roles.lines(suite.roles)):
        terminal.write_line(f"{about:<11} {line}")
    for each in suite.worst:
        terminal.write_line(f"worst       {each.id} {each.score:.3f}: expected {tools_text(each.expected_tools)}")
        terminal.write_line(f"{'':<11} {'':<{len(each.id)}}        actual   {tools_text(each.actual_tools)}")
        if question := each.question:
            terminal.write_line(f"{'':<11} {'':<{len(each.id)}}        asks     {question}")


def _write_scores(terminal: TerminalReporter, suite: SuiteResult) -> None:
    for score, means in suite.scores.items():
        terminal.write_line(f"{score:<11} {score_text(means.mean)}")
        if means.mean != means.mean_evaluable:
            evaluable = means.mean_evaluable
            only = "no evaluable rollout" if evaluable is None else f"{mean_text(evaluable)} over evaluable rollouts only"
            terminal.write_line(f"{'':<11} {only}")
    if suite.passes:
        terminal.write_line(f"passed      {passes_text(suite.passes, suite.scales[suite.passes.score])}")
    if efficiency := efficiency_text(suite.efficiency):
        terminal.write_line(f"efficiency  {efficiency}")


def _write_tasks(terminal: TerminalReporter, tasks: TasksSummary | None) -> None:
    if tasks:
        terminal.write_line(f"tasks       {tasks_text(tasks)}")
        for line in failure_lines(tasks):
            terminal.write_line(f"{'':<11} {line}")


def _write_mistakes(terminal: TerminalReporter, triage: Triage | None) -> None:
    if triage and triage.faulty:
        terminal.write_line(f"mistakes    {faulty_text(triage)}: {kinds_text(triage)}")
        for confusion in triage.confused[:CONFUSED]:
            terminal.write_line(f"{'':<11} {confusion_text(confusion)}")


def _write_performance(terminal: TerminalReporter, performance: PerformanceSummary, stopwatch: Stopwatch, *, arms: bool) -> None:
    terminal.write_line(f"serving{', all arms together' if arms else ''}", bold=True)
    verdict = stopwatch.verdict
    terminal.write_line(f"stopwatch   {stopwatch_text(stopwatch)}", red=verdict == SATURATED, yellow=verdict not in (OK, SATURATED))
    for note in stopwatch.notes:
        terminal.write_line(f"{'':<11} {note}")
    terminal.write_line(f"calls       {calls_text(performance)}")
    for line in failed_lines(performance):
        terminal.write_line(f"failed      {line}", yellow=True)
    terminal.write_line(f"throughput  {throughput_text(performance)}")
    terminal.write_line(
        f"window      {chosen_text(window)}" if (window := performance.window) else f"steady      {steady_text(performance)}"
    )
    if performance.goodput:
        terminal.write_line(f"goodput     {goodput_text(performance.goodput)}")
    if performance.split:
        terminal.write_line(f"time        {split_text(performance.split)}")
    _write_timings(terminal, performance.latencies)
    if window and window.seconds:
        terminal.write_line("of the calls that were sent in the window")
        _write_timings(terminal, window.latencies)
    if why := few_text(performance):
        terminal.write_line(why)


def _write_serving(terminal: TerminalReporter, serving: ServingSummary) -> None:
    for about, line in server_lines(serving):
        terminal.write_line(f"{about:<11} {line}")
    for about, line in doubt_lines(serving):
        terminal.write_line(f"{about:<11} {line}", yellow=True)


def _write_timings(terminal: TerminalReporter, latencies: Mapping[str, LatencySpread | None]) -> None:
    terminal.write_line(f"{'ms':<16}" + "".join(f"{column:>10}" for column in COLUMNS) + "   median, 95 %")
    for metric in registry.latencies().values():
        if spread := latencies.get(metric.key):
            cells = "".join(f"{number(getattr(spread, column)):>10}" for column in COLUMNS)
            terminal.write_line(f"{metric.title:<16}{cells}   {range_text(spread.intervals['p50'])}".rstrip())


def rollout_lines(rollout: Rollout, *, with_tools: bool) -> Iterator[str]:
    """Yields what the terminal shows of a rollout with -v, and with -vv."""
    scores = ", ".join(f"{name} {score!r}" for name, score in rollout.scores.items())
    yield f"  {rollout.key}  {rollout.status}  {scores or rollout.reason}  {rollout.duration_s:.2f} s"
    if with_tools:
        yield f"      expected {tools_text(rollout.expected_tools)}; actual {tools_text(rollout.tools)}"
