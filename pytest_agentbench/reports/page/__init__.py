"""report.html: a page about one or several runs in a single file. It needs no network, no server and no other file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.records import Json
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.page.data import MOST, PackedRollouts, RunData, keys_of, packed_data, run_data
from pytest_agentbench.reports.page.layout import RolloutLinks, folded_html, page, run_html, several_html
from pytest_agentbench.reports.page.pictures import compared_runs, intervals, intervals_against_reference
from pytest_agentbench.reports.sections import document, side_by_side
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import summarize_damage
from pytest_agentbench.runs.run_file import Run, read_run

PAGE = "report.html"


def write(run: Run, directory: Path, packed: PackedRollouts | None = None) -> Path:
    """Writes report.html of a run next to its journal, which is read only if `packed` does not contain its rollouts. Raises OSError."""
    data = (
        packed_data(run, directory, packed) if packed else run_data(run, directory, lambda _damage: None)
    )  # run.json already lists the damage
    return write_page([RunView(run, directory)], [data], intervals(run), directory / PAGE)


def write_several(directories: Sequence[Path], path: Path, on_damage: Callable[[str], None]) -> Path:
    """Writes a page about several runs, which also compares them with the first one. Raises ConfigError and OSError."""
    runs = [read_run(directory) for directory in directories]
    data = [readable(run, directory, on_damage, MOST // len(runs)) for run, directory in zip(runs, directories, strict=True)]
    compared, texts = [each for run in runs for each in intervals(run)], []
    if len(runs) > 1:
        from pytest_agentbench.reports.sections import runs_compared  # imported late, because a session does not need the statistics

        comparison = compared_runs(directories)
        compared = [*intervals_against_reference(comparison), *compared]
        texts.append(folded_html(phrases.COMPARISON, runs_compared.document(comparison, details=True)))
    views = [RunView(run, directory) for run, directory in zip(runs, directories, strict=True)]
    return write_page(views, data, compared, path, texts)


def readable(run: Run, directory: Path, on_damage: Callable[[str], None], most: int) -> RunData:
    """Reads the data of a run, with blocks of at most `most` characters. Raises ConfigError if no record can be read.

    Invalid records are reported with `on_damage`.
    """
    damage: list[str] = []
    data = run_data(run, directory, damage.append, most)
    if damage and not data.index["rows"]:
        again = shlex.join(run.command) or "pytest"
        raise ConfigError(f"this version cannot read any record of {directory / JOURNAL}: {damage[0]}; repeat the run with `{again}`")
    for sentence in summarize_damage(damage):
        on_damage(sentence)
    return data


def write_page(views: Sequence[RunView], data: Sequence[RunData], compared: Sequence[Json], path: Path, texts: Sequence[str] = ()) -> Path:
    """Writes a page about runs whose data has been read, and returns `path`.

    `compared` has the intervals for the picture of differences. `texts` are more reports as HTML, shown below those of the runs.
    """
    html = page(" and ".join(view.run.id for view in views), "\n".join([_reports(views, data), *texts]), data, compared)
    return write_whole(path, html, errors="backslashreplace")


def _reports(views: Sequence[RunView], data: Sequence[RunData]) -> str:
    """Returns the report of a run. Several runs have one table, and their reports folded below it."""
    heading = "h1" if len(views) == 1 else "h3"
    reports = [
        run_html(document(view), RolloutLinks(keys_of(each)).of, side_by_side.of_arms(view.run.ab) if view.run.ab else None, heading)
        for view, each in zip(views, data, strict=True)
    ]
    if len(views) == 1:
        return reports[0]
    names = [each.index["name"] for each in data]
    titles = [f"{name}: {view.run.verdict}" for name, view in zip(names, views, strict=True)]
    return several_html(side_by_side.of_runs(names, [view.run for view in views]), titles, reports)
