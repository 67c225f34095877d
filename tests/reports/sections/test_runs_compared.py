"""The report of compared runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_agentbench.gate.run_comparison import RunComparison, distinct
from pytest_agentbench.gate.run_pair import ComparedRun
from pytest_agentbench.reports import comparison_phrases, phrases
from pytest_agentbench.reports.columns import columns
from pytest_agentbench.reports.document import Code, Document, Finding, Level, Table, TableCell, plain
from pytest_agentbench.reports.markdown import lines as markdown
from pytest_agentbench.reports.sections.runs_compared import LONGEST, MOST, WIDTH, document, with_short_names
from pytest_agentbench.reports.terminal import lines
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE
from pytest_agentbench.stats.quantiles import latency_spread
from tests.findings import facts, said, tables
from tests.gate.evidences import HASHES, evidence, trial
from tests.gate.test_run_comparison import noisy, passing, several
from tests.gate.test_run_pair import run


def words(cell: TableCell) -> str:
    return plain(cell.words if isinstance(cell, Finding) else cell) if isinstance(cell, str | tuple | Code | Finding) else str(cell)


def titled(report: Document, title: str) -> Table:
    """Returns the table in the section with this title."""
    [table] = [each for part in report.sections if plain(part.title) == title for each in part.flat() if isinstance(each, Table)]
    return table


def differing(report: Document) -> Iterator[tuple[str, Table]]:
    """Yields the tables of differing scenarios with the titles of their sections."""
    named = [(part, table) for part in report.sections for table in part.flat() if isinstance(table, Table)]
    yield from ((plain(part.title), table) for part, table in named if isinstance(table.rows[0][0], Code))


def test_scores_and_differences() -> None:
    """A score has a row of means, one of intervals, and two of differences, which are empty for the reference."""
    runs = several(passing(noisy()), passing(noisy(0.5)), passing(noisy(seed=7)))
    table = titled(document(runs, details=False), "shop")

    assert ["", "a", "b", "c"] == [column.title for column in table.columns]
    assert ["", "a"] == [column.title for column in table.columns[: table.repeated]]  # a part without the reference would be meaningless
    titles = [words(row[0]).strip() for row in table.rows]
    at = titles.index("tsq")
    assert ["tsq", "95 %", "vs a", ""] == titles[at : at + 4]
    means, intervals, differences, ends = table.rows[at : at + 4]
    suites = [each.facts.suites["shop"].scores["tsq"].mean for each in runs.runs]
    assert [each and each.value for each in suites] == [*means[1:]]
    assert [(phrases.ends, (each.low, each.high)) for each in suites if each] == [
        (cell.phrase, cell.values) for cell in intervals[1:] if isinstance(cell, Finding)
    ]
    decisions = [cell.values[0] for cell in differences[2:] if isinstance(cell, Finding)]
    assert [FAIL, INCONCLUSIVE] == [each.verdict for each in decisions]
    assert ("", "") == (differences[1], ends[1])
    assert decisions == [cell.values[0] for cell in ends[2:] if isinstance(cell, Finding)]


def test_rows_without_a_value_are_left_out() -> None:
    """A metric that all runs lack has no row, and one without a comparison no row of differences. Zero is a value."""
    report = document(several(run(noisy()), run(noisy(), suites=("store",))), details=False)
    speeds = titled(report, "Speed, ms")

    assert ["failed calls"] == [row[0] for row in speeds.rows][:1]
    assert ["0", "0"] == [words(cell) for cell in speeds.rows[0][1:]]
    assert all(any(words(cell) not in ("", "None") for cell in row[1:]) for row in speeds.rows)
    assert [] == [row for row in titled(report, "shop").rows if "vs a" in words(row[0])]


def test_speeds() -> None:
    """A row has the same percentile of each run."""
    runs = several(*(with_ttft(value) for value in (10.0, 20.0)))
    rows = {words(row[0]): [words(cell) for cell in row[1:]] for row in titled(document(runs, details=False), "Speed, ms").rows}

    assert (["10.0", "20.0"], ["10.0", "20.0"]) == (rows["TTFT p50"], rows["TTFT p90"])


def with_ttft(value: float) -> ComparedRun:
    """Returns a run whose calls all have this TTFT in milliseconds."""
    found = run(noisy())
    performance = found.facts.performance
    metrics = {**performance.metrics, "ttft_ms": latency_spread([value] * 20)}
    return replace(found, facts=replace(found.facts, performance=replace(performance, metrics=metrics)))


def test_details() -> None:
    """With details, the differing scenarios of every score are listed, and remarks name equal scores, left-out scenarios and retries."""
    changed = {**HASHES, "scenario": "other"}
    base = evidence([trial("lower"), trial("changed"), trial("unmeasured"), trial("gone")])
    new = evidence([trial("lower", 0.2), trial("changed", content=changed), trial("unmeasured", None, status="infra_error"), trial("new")])
    runs = several(passing(base), passing(new))
    again = replace(runs.runs[1].facts.suites["shop"], retried=2)
    runs = several(runs.runs[0], replace(runs.runs[1], facts=replace(runs.runs[1].facts, suites={"shop": again})))
    report, short = document(runs, details=True), document(runs, details=False)

    counts = {"only_new": 1, "only_base": 1, "changed": 1, "unmeasured": 1}
    assert [("shop", "a", "b", counts)] == said(report, comparison_phrases.scenarios_left_out)
    assert [("shop", "b", again)] == said(report, comparison_phrases.retried)
    assert [] == said(report, comparison_phrases.same_scores)
    assert [Code("lower", "scenario")] == [row[0] for _, each in differing(report) for row in each.rows]
    assert [] == [*said(short, comparison_phrases.scenarios_left_out), *said(short, comparison_phrases.retried)]
    same = document(several(runs.runs[0], runs.runs[0]), details=True)
    assert [("shop", ["tsq"])] == said(same, comparison_phrases.same_scores)
    assert [] == [*differing(same)]


def test_the_number_of_scenarios_is_limited() -> None:
    """A table for a terminal is limited, and its title has the total. Otherwise it has all rows."""
    base, new = (evidence(trial(f"{number:02}", score) for number in range(MOST + 5)) for score in (1.0, 0.0))
    runs = several(passing(base), passing(new))

    [(title, cut)], [(whole_title, whole)] = (differing(document(runs, details=False, most=most)) for most in (MOST, None))

    assert (MOST, MOST + 5) == (len(cut.rows), len(whole.rows))
    assert [str(MOST), str(MOST + 5)] == re.findall(r"\d+", title)
    assert [str(MOST + 5)] == re.findall(r"\d+", whole_title)


def test_runs_without_an_identity() -> None:
    """A run without a recorded setup is named."""
    unknown = ComparedRun(replace(run().facts, identity=None), run().evidence)

    report = document(several(run(), unknown), details=False)

    assert [(["b"],)] == said(report, comparison_phrases.unknown_setup)
    assert [] == said(report, comparison_phrases.same_setup)


def test_runs_without_a_common_suite() -> None:
    """If the suites differ, data, prompts, tools, agents and scoring are not listed as equal."""
    [(parts, of)] = said(document(several(run(suites=("store",)), run(), run()), details=False), comparison_phrases.same_setup)

    assert ["code", "packages", "backend", "model", "hardware", "host", "options", "more"] == parts
    assert {*parts} < {*of}


def test_setups_name_their_runs() -> None:
    """Two runs with the same difference from the reference share a line. Equal runs have everything in common."""
    report = document(several(run(), run(concurrency=4), run(concurrency=4), run()), details=False)

    [(changed, names)] = said(report, comparison_phrases.setup_change)
    assert ("concurrency", 8, 4, ["b", "c"]) == (changed.path, changed.old, changed.new, names)
    assert 1 == len(facts(report, "options"))
    [(parts, of)] = said(report, comparison_phrases.same_setup)
    assert [part for part in of if part != "options"] == parts
    [(parts, of)] = said(document(several(run(), run(), run()), details=False), comparison_phrases.same_setup)
    assert parts == of


@pytest.mark.parametrize("count", [2, 6, 12])
def test_hundred_columns(count: int) -> None:
    """No line is longer than 100 columns with any number of runs, and all cells are present."""
    names = tuple(f"20260304-050607-a-long-name-{number}" for number in range(count))
    long = "scenario-" * 12
    runs = RunComparison(
        distinct(names), tuple(passing(evidence([trial(long, seed % 2), *noisy(seed=seed).groups["shop"]])) for seed in range(count))
    )
    report = document(with_short_names(runs), details=True, most=MOST)
    shown = [line.text for line in lines(report, Level.FULL, WIDTH)]

    assert WIDTH >= max(map(columns, shown))
    heads = {word for line in shown for word in re.findall(r"20260304-050607-a-l\.\.\.(?: \(\d+\))?", line) if line[0] == " "}
    assert count == len(heads)
    assert all(columns(name) <= LONGEST + len(" (12)") for name in heads)
    rows = {words(row[0]) for table in tables(report, "") for row in table.rows} - {long}
    assert [] == [row for row in rows if row and not any(line.startswith(row) for line in shown)]
    assert any(line.startswith("scenario-") and "..." in line for line in shown)


def test_names_are_escaped() -> None:
    """Names of scenarios and runs are escaped."""
    hostile = "<b>|@you"
    runs = RunComparison(("[x](y)", "b"), (passing(evidence([trial(hostile)])), passing(evidence([trial(hostile, 0.0)]))))

    text = "\n".join(markdown(document(runs, details=True), Level.VERBOSE))

    assert "| `<b>\\|@you` |" in text
    assert "<b>" not in re.sub("`[^`]*`", "", text)
    assert "[x](y)" not in re.sub("`[^`]*`", "", text)
    assert "[x\\](y)" in text
