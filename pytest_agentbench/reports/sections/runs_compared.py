"""The report of a comparison of runs: their setups, tables with a column for each run, and the scenarios whose scores differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_agentbench.gate.run_comparison import (
    PERCENTILES,
    RunComparison,
    compared_scores,
    comparison_warnings,
    distinct,
    flips,
    latency_against,
    left_out,
    passes_against,
    score_against,
)
from pytest_agentbench.gate.run_pair import compared_parts, setup_changes
from pytest_agentbench.metrics import registry
from pytest_agentbench.reports import comparison_phrases, phrases, suite_phrases
from pytest_agentbench.reports.columns import cut
from pytest_agentbench.reports.document import (
    Bullets,
    Code,
    Column,
    Document,
    Fact,
    Finding,
    Note,
    Section,
    Table,
    TableCell,
    heads,
    plain,
    say,
)
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.phrases import number, significant
from pytest_agentbench.runs.results import Changed, Mean
from pytest_agentbench.stats.decisions import Decision

WIDTH = 100  # columns of a terminal
LONGEST = 22  # columns of a run's name on a terminal
MOST = 20  # scenarios on a terminal

Row = tuple[TableCell, ...]


def document(runs: RunComparison, *, details: bool, most: int | None = None) -> Document:
    """Returns the report of a comparison of runs.

    Args:
        runs: The runs, the reference first.
        details: Whether to list the scenarios that differ in any score, instead of only the main one.
        most: Maximum number of scenarios in a table.
    """
    suites = (of(group, [_table(runs, _suite_rows(runs, group))]) for group in runs.groups)
    differing = _differing_scenarios(runs, most, details=details)
    parts = (_runs(runs), of("Setup", setup(runs)), *suites, of("Speed, ms", [_table(runs, _speed_rows(runs))]), *differing)
    reading = Section("How to read it", (Note(say(comparison_phrases.how_to_read, runs.names[0])), *_remarks(runs, details=details)))
    return Document.of(" | ".join(runs.names), (*parts, reading))


def with_short_names(runs: RunComparison) -> RunComparison:
    """Returns the comparison with names of runs that fit on a terminal. No two names are equal."""
    return replace(runs, names=distinct([cut(name, LONGEST) for name in runs.names]))


def _runs(runs: RunComparison) -> Section:
    rows = [(name, run.facts.id, run.facts.started_at, run.facts.backend.name) for name, run in zip(runs.names, runs.runs, strict=True)]
    return Section("Runs", (Table(heads("run", "id", "started", "backend"), tuple(rows)),))


def setup(runs: RunComparison) -> Iterator[Fact]:
    """Yields each difference from the setup of the reference with the runs that have it, and then the parts that are equal in all runs."""
    changes: dict[tuple[str, str], tuple[Changed, list[str]]] = {}
    for name, run in runs.others.items():
        for each in setup_changes(runs.reference, run):
            changes.setdefault((each.part, comparison_phrases.change(each)), (each, []))[1].append(name)
    for changed, names in changes.values():
        yield Fact(changed.part, say(comparison_phrases.setup_change, changed, names))
    if unknown := [name for name, run in zip(runs.names, runs.runs, strict=True) if run.identity is None]:
        yield Fact("unknown", say(comparison_phrases.unknown_setup, unknown))
        return
    first = runs.reference.identity
    assert first is not None
    differing = {part for part, _ in changes}
    compared = [compared_parts(runs.reference, run) for run in runs.others.values()]
    if same := [part for part in first.hashes if part not in differing and all(part in each for each in compared)]:
        yield Fact("the same", say(comparison_phrases.same_setup, same, [*first.hashes]))


def _table(runs: RunComparison, rows: Iterable[Row]) -> Table:
    """Returns a table with a column for each run, the reference first. Rows without values are left out."""
    kept = tuple(row for row in rows if any(map(_has_value, row[1:])))
    return Table((*heads(""), *(Column(name, 3) for name in runs.names)), kept, repeated=2)


def _has_value(cell: TableCell) -> bool:
    return cell is not None and (isinstance(cell, int | float) or bool(plain(cell.words if isinstance(cell, Finding) else cell)))


def _suite_rows(runs: RunComparison, group: str) -> Iterator[Row]:
    suites = [run.facts.suites.get(group) for run in runs.runs]
    yield "rollouts", *(say(suite_phrases.statuses, suite.rollouts) if suite else None for suite in suites)
    for score in dict.fromkeys(score for suite in suites if suite for score in suite.scores):
        yield from _mean_rows(score, [suite.scores[score].mean if suite and score in suite.scores else None for suite in suites])
        yield from _difference_rows(runs, [each.decision for each in score_against(runs, group, score)])
    firsts = [suite.passes.pass_all[0] if suite and suite.passes and suite.passes.pass_all else None for suite in suites]
    yield from _mean_rows("passed", firsts)
    if any(firsts):
        yield from _difference_rows(runs, [each.decision for each in passes_against(runs, group)])
    for metric in registry.efficiency().values():
        values = [suite.efficiency.metrics[metric.name] if suite else None for suite in suites]
        yield metric.title, *(None if value is None else say(significant, value) for value in values)


def _mean_rows(title: str, means: Sequence[Mean | None]) -> Iterator[Row]:
    yield title, *(mean.value if mean else None for mean in means)
    known = [(mean.low, mean.high) if mean else (None, None) for mean in means]
    yield "  95 %", *(None if low is None or high is None else say(phrases.ends, low, high) for low, high in known)


def _difference_rows(runs: RunComparison, decisions: Sequence[Decision | None]) -> Iterator[Row]:
    yield comparison_phrases.against(runs.names[0]), "", *(say(comparison_phrases.difference, each) for each in decisions)
    yield "", "", *(say(comparison_phrases.difference_ends, each) for each in decisions)


def _speed_rows(runs: RunComparison) -> Iterator[Row]:
    performances = [run.facts.performance for run in runs.runs]
    yield "failed calls", *(say(number, sum(each.failed_calls.values()), 0) for each in performances)
    for name in registry.gated():
        spreads = [each.latency(name) for each in performances]
        for q in PERCENTILES:
            values = [getattr(spread, f"p{q}") if spread else None for spread in spreads]
            yield f"{registry.title_of(name)} p{q}", *_numbers(values, 1)
            if any(value is not None for value in values):
                decisions = [each.decision for each in latency_against(runs, name, q)]
                yield comparison_phrases.against(runs.names[0]), "", *(say(comparison_phrases.ratio, each) for each in decisions)
                yield "", "", *(say(comparison_phrases.ratio_ends, each) for each in decisions)
    for metric in registry.rates().values():
        yield metric.title, *_numbers([each.number(metric.name) for each in performances], metric.digits)


def _numbers(values: Sequence[float | None], digits: int) -> Iterator[TableCell]:
    yield from (None if value is None else say(number, value, digits) for value in values)


def _differing_scenarios(runs: RunComparison, most: int | None, *, details: bool) -> Iterator[Section | None]:
    """Yields for each suite the scenarios whose main score differs between runs; with `details`, for every score."""
    for group in runs.groups:
        for score in compared_scores(runs, group)[: None if details else 1]:
            every = flips(runs, group, score)
            rows = [
                (
                    Code(each.scenario, "scenario"),
                    *(say(comparison_phrases.scenario_result, cell) if cell else None for cell in each.cells),
                )
                for each in every[:most]
            ]
            main = score == runs.reference.facts.suites[group].main_score
            title = comparison_phrases.scenarios_that_differ(group, score, len(rows), len(every), with_trials=main)
            yield of(title, [_table(runs, rows)])


def _remarks(runs: RunComparison, *, details: bool) -> Iterator[Bullets]:
    """Yields what is equal in all runs, what was left out, and doubts about the comparison."""
    remarks = [*(details_of(runs) if details else ()), *comparison_warnings(runs)]
    if remarks:
        yield Bullets(tuple(remarks))


def details_of(runs: RunComparison) -> Iterator[Finding]:
    """Yields for each suite the equal scores, the scenarios left out, and the scores of rollouts with several attempts."""
    for group in runs.groups:
        same = [score for score in compared_scores(runs, group) if not flips(runs, group, score)]
        remarks = [say(comparison_phrases.same_scores, group, same)]
        for name, run in runs.others.items():
            remarks.append(say(comparison_phrases.scenarios_left_out, group, runs.names[0], name, left_out(runs, run, group)))
        for name, run in zip(runs.names, runs.runs, strict=True):
            if suite := run.facts.suites.get(group):
                remarks.append(say(comparison_phrases.retried, group, name, suite))
        yield from (each for each in remarks if plain(each.words))
