"""Several runs side by side for people: setups first, then a table with a column for each run, then the scenarios that differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from pytest_agentbench.gate.run_comparison import (
    PERCENTILES,
    ReferenceComparison,
    RunComparison,
    ScenarioResult,
    compared_scores,
    distinct,
    doubt_sentences,
    flips,
    latency_against,
    left_out,
    passes_against,
    score_against,
)
from pytest_agentbench.gate.run_pair import Changed, compared_parts, setup_changes
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.reports.columns import columns, cut, fold
from pytest_agentbench.reports.markdown import prose, table
from pytest_agentbench.reports.numbers import number, significant
from pytest_agentbench.reports.phrases import MISSING
from pytest_agentbench.reports.phrases import retried as retried_text
from pytest_agentbench.reports.phrases import statuses as statuses_text
from pytest_agentbench.reports.terminal import TerminalReporter
from pytest_agentbench.runs.results import Mean
from pytest_agentbench.stats.decisions import FAIL, PASS

WIDTH = 100  # columns of a terminal
LONGEST = 22  # columns of a run's name
MOST = 20  # scenarios in a terminal
GAP = "  "
VALUE = 60  # characters of a value of the setup

#: What a part of the setup says of something that one of the runs does not have.
NOTHING = {"packages": "not installed", **dict.fromkeys(("code", "model", "hardware", "host"), "unknown")}

BETTER, FASTER = {PASS: "better", FAIL: "worse"}, {PASS: "faster", FAIL: "slower"}

HOW = (
    "A row `vs NAME` is the difference of scores and of shares that passed, or the ratio of latencies, with its interval; "
    "without a word none was shown. Of each row all comparisons together are wrong in 5 % of cases at most (Holm)."
)


@dataclass(frozen=True)
class TableRow:
    """A line of a table, with a cell for each run."""

    title: str
    cells: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not any(cell not in ("", "-") for cell in self.cells)


@dataclass(frozen=True)
class Section:
    """A table about one suite under a variant, or about all of the runs."""

    title: str
    rows: tuple[TableRow, ...]


def write_several(terminal: TerminalReporter, runs: RunComparison, *, details: bool) -> None:
    """Writes everything, as `agentbench compare` prints it, in 100 columns; `details` as in `flip_sections`."""
    runs = replace(runs, names=distinct([cut(name, LONGEST) for name in runs.names]))
    terminal.write_sep("=", "agentbench compare", bold=True)
    longest = max(11, *map(columns, runs.names))
    for name, line in _run_lines(runs):
        _write_folded(terminal, name, line, longest)
    terminal.write_line("setup", bold=True)
    for part, line in setup_lines(runs):
        _write_folded(terminal, part, line)
    for each in sections(runs):
        _write_section(terminal, each, runs.names)
    for each in flip_sections(runs, details=details, most=MOST):
        _write_section(terminal, each, runs.names)
    terminal.write_line("how to read it", bold=True)
    for sentence in (HOW.replace("NAME", runs.names[0]), *(detail_sentences(runs) if details else ()), *doubt_sentences(runs)):
        for line in fold(sentence, WIDTH):
            terminal.write_line(line)


def markdown(runs: RunComparison, *, details: bool) -> Iterator[str]:
    """Yields the same as Markdown, with all scenarios that differ."""
    yield f"# {prose(' | '.join(runs.names))}\n"
    yield from (f"- **{prose(name)}**: {prose(line)}" for name, line in _run_lines(runs))
    yield "\n## Setup\n"
    yield from (f"- {prose(part)}: {prose(line)}" for part, line in setup_lines(runs))
    for each in (*sections(runs), *flip_sections(runs, details=details)):
        yield f"\n## {prose(each.title)}\n"
        yield from table(["", *map(prose, runs.names)], [[prose(row.title.strip()), *map(prose, row.cells)] for row in each.rows])
    yield f"\n{prose(HOW.replace('NAME', runs.names[0]))}"
    yield from (f"\n{prose(sentence)}." for sentence in (*(detail_sentences(runs) if details else ()), *doubt_sentences(runs)))


def _run_lines(runs: RunComparison) -> Iterator[tuple[str, str]]:
    for name, run in zip(runs.names, runs.runs, strict=True):
        yield name, f"{run.facts.id} of {run.facts.started_at} on {run.facts.backend.name}"


def setup_lines(runs: RunComparison) -> Iterator[tuple[str, str]]:
    """(part, what differs from the reference's, and in which runs), what is the same in all of them last."""
    lines: dict[tuple[str, str], list[str]] = {}
    for name, run in runs.others.items():
        for each in setup_changes(runs.reference, run):
            lines.setdefault((each.part, changed_text(each)), []).append(name)
    for (part, text), names in lines.items():
        yield part, f"{text} ({', '.join(names)})"
    if unknown := [name for name, run in zip(runs.names, runs.runs, strict=True) if run.identity is None]:
        yield "unknown", f"another tool made {', '.join(unknown)}, and says nothing of a setup"
        return
    first = runs.reference.identity
    assert first is not None
    differing = {part for part, _ in lines}
    told = [compared_parts(runs.reference, run) for run in runs.others.values()]
    if same := [part for part in first.hashes if part not in differing and all(part in each for each in told)]:
        yield "the same", "everything" if same == [*first.hashes] else ", ".join(same)


def changed_text(changed: Changed) -> str:
    """`shop.temperature: 0.0 -> 0.6`; of lists only what differs, of prompts and tools that their texts do."""
    if changed.part in ("prompts", "tools") and isinstance(changed.old, str) and isinstance(changed.new, str):
        return f"{changed.path}: another text (hash {changed.old} -> {changed.new})"
    if isinstance(changed.old, list) and isinstance(changed.new, list):
        return f"{changed.path}: {_list_text(changed.old, changed.new)}"
    nothing = NOTHING.get(changed.part, "unset")
    return f"{changed.path}: {_short(changed.old, nothing)} -> {_short(changed.new, nothing)}"


def _list_text(old: Sequence[Any], new: Sequence[Any]) -> str:
    """`... 32768 -> 65536 ...`: the places in which two lists differ."""
    before, after = ([_short(each, "null") for each in every] for every in (old, new))
    places = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return "; ".join(
        f"{' '.join(before[a:b]) or 'nothing'} -> {' '.join(after[c:d]) or 'nothing'}" for tag, a, b, c, d in places if tag != "equal"
    )


def _short(value: Any, nothing: str) -> str:
    if value is None:
        return nothing
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= VALUE else f"{text[: VALUE - 3]}..."


def sections(runs: RunComparison) -> Iterator[Section]:
    """Scores of each suite, then speed and all else that is of whole runs."""
    for group in runs.groups:
        yield Section(group, tuple(row for row in _suite_rows(runs, group) if not row.is_empty))
    yield Section("speed, ms", tuple(row for row in _speed_rows(runs) if not row.is_empty))


def _suite_rows(runs: RunComparison, group: str) -> Iterator[TableRow]:
    suites = [run.facts.suites.get(group) for run in runs.runs]
    yield TableRow("rollouts", tuple(statuses_text(suite.rollouts) if suite else "-" for suite in suites))
    for score in dict.fromkeys(score for suite in suites if suite for score in suite.scores):
        means = [suite.scores[score].mean if suite and score in suite.scores else None for suite in suites]
        yield from _mean_rows(score, means)
        yield from _against_rows(runs, score_against(runs, group, score), BETTER, "+.3f")
    firsts = [suite.passes.pass_all[0] if suite and suite.passes and suite.passes.pass_all else None for suite in suites]
    yield from _mean_rows("passed", firsts)
    if any(firsts):
        yield from _against_rows(runs, passes_against(runs, group), BETTER, "+.3f")
    for metric in registry.efficiency().values():
        values = [suite.efficiency.metrics[metric.name] if suite else None for suite in suites]
        yield TableRow(metric.title, tuple(map(significant, values)))


def _mean_rows(title: str, means: Sequence[Mean | None]) -> Iterator[TableRow]:
    yield TableRow(title, tuple(number(mean.value if mean else None, 3) for mean in means))
    yield TableRow("  95 %", tuple("-" if mean is None or mean.low is None else f"{mean.low:.3f} to {mean.high:.3f}" for mean in means))


def _against_rows(runs: RunComparison, found: Sequence[ReferenceComparison], words: dict[str, str], form: str) -> Iterator[TableRow]:
    """The estimates with a word where something is claimed, and their intervals."""
    decisions = [None, *(each.decision for each in found)]
    estimates, intervals = [], []
    for each in decisions:
        known = each is not None and each.estimate is not None and each.low is not None
        estimates.append(f"{each.estimate:{form}} {words.get(each.verdict, '')}".rstrip() if each and known else "")
        intervals.append(f"{each.low:{form}} to {each.high:{form}}" if each and known else "")
    yield TableRow(f"  vs {runs.names[0]}", tuple(estimates))
    yield TableRow("", tuple(intervals))


def _speed_rows(runs: RunComparison) -> Iterator[TableRow]:
    performances = [run.facts.performance for run in runs.runs]
    yield TableRow("failed calls", tuple(str(sum(each.failed_calls.values())) for each in performances))
    for name in registry.gated():
        spreads = [each.latency(name) for each in performances]
        for q in PERCENTILES:
            row = TableRow(
                f"{registry.title_of(name)} p{q}", tuple(number(getattr(spread, f"p{q}") if spread else None) for spread in spreads)
            )
            yield row
            if not row.is_empty:
                yield from _against_rows(runs, latency_against(runs, name, q), FASTER, ".2f")
    yield from (_rate_row(runs, metric) for metric in registry.rates().values())


def _rate_row(runs: RunComparison, metric: Metric) -> TableRow:
    return TableRow(metric.title, tuple(number(run.facts.performance.number(metric.name), metric.digits) for run in runs.runs))


def flip_sections(runs: RunComparison, *, details: bool, most: int | None = None) -> Iterator[Section]:
    """Yields for each suite the scenarios whose main score is not the same in all runs; with `details` those of every score.

    There are `most` of each at most, with how many there are.
    """
    for group in runs.groups:
        for score in compared_scores(runs, group)[: None if details else 1]:
            every = flips(runs, group, score)
            rows = [TableRow(each.scenario, tuple(map(_cell_text, each.cells))) for each in every[:most]]
            if rows:
                shown = f"the first {len(rows)} of {len(every)}, --format markdown has all" if len(rows) < len(every) else f"{len(every)}"
                passed = " and how many trials passed" if score == runs.reference.facts.suites[group].main_score else ""
                yield Section(f"{group}: scenarios that differ ({shown}), {score}{passed}", tuple(rows))


def detail_sentences(runs: RunComparison) -> Iterator[str]:
    """Yields for each suite what is the same, what was left out, and how rollouts that were tried again score."""
    for group in runs.groups:
        if same := [score for score in compared_scores(runs, group) if not flips(runs, group, score)]:
            yield f"every scenario of {group} that is compared has the same {', '.join(same)} in all runs"
        for name, run in runs.others.items():
            counts = left_out(runs, run, group)
            words = {"only_new": f"only in {name}", "only_base": f"only in {runs.names[0]}"}
            if parts := ", ".join(f"{count} {words.get(each, MISSING[each])}" for each, count in counts.items() if count):
                yield f"scenarios of {group} that are left out of the comparison of {name} with {runs.names[0]}: {parts}"
        for name, run in zip(runs.names, runs.runs, strict=True):
            if (suite := run.facts.suites.get(group)) and (retried := retried_text(suite)):
                yield f"{group} of {name}: {retried}"


def _cell_text(cell: ScenarioResult | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.mean:.3f}" if cell.passed is None else f"{cell.mean:.3f} {cell.passed}/{cell.trials}"


def _write_folded(terminal: TerminalReporter, about: str, line: str, width: int = 11) -> None:
    """The line behind what it is about, folded where it is long."""
    first, *others = fold(line, WIDTH - width - 1)
    terminal.write_line(f"{about}{' ' * (width - columns(about))} {first}")
    for other in others:
        terminal.write_line(f"{' ' * width} {other}")


def _write_section(terminal: TerminalReporter, section: Section, names: Sequence[str]) -> None:
    """A table; where the runs do not fit beside each other, in several parts, each of which begins with the reference."""
    if not section.rows:
        return
    titles = max(columns(cut(row.title, 2 * LONGEST)) for row in section.rows)
    widths = [max(columns(each) for each in (head, *(row.cells[place] for row in section.rows))) for place, head in enumerate(names)]
    for line in fold(section.title, WIDTH):
        terminal.write_line(line, bold=True)
    for places in parts(widths, WIDTH - titles):
        _write_row(terminal, "", [(names[place], widths[place]) for place in places], titles)
        for row in section.rows:
            if not TableRow(row.title, tuple(row.cells[place] for place in places)).is_empty:
                _write_row(terminal, cut(row.title, 2 * LONGEST), [(row.cells[place], widths[place]) for place in places], titles)


def _write_row(terminal: TerminalReporter, title: str, cells: Sequence[tuple[str, int]], titles: int) -> None:
    ends = (f"{GAP}{' ' * (width - columns(cell))}{cell}" for cell, width in cells)
    terminal.write_line(f"{title}{' ' * (titles - columns(title))}{''.join(ends)}".rstrip())


def parts(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Places of the columns that stand beside each other, the first one in each part; as many as there is room for, one other at least."""
    part = [0]
    for place in range(1, len(widths)):
        if len(part) > 1 and sum(widths[each] + len(GAP) for each in (*part, place)) > room:
            yield part
            part = [0]
        part.append(place)
    yield part
