"""Sections of plugins: they are in all reports, and a failing one does not prevent a report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.reports import comment, markdown, page, phrases
from pytest_agentbench.reports.document import Document, Level, Measure, Note
from pytest_agentbench.reports.sections import ENTRY_POINTS
from pytest_agentbench.reports.terminal import headline_lines, lines
from pytest_agentbench.runs.run_file import Run
from tests.findings import measure, part, report, said, tables, values_of
from tests.made_runs import run_directory, run_of
from tests.reports.test_serving_phrases import GPU, SERVING
from tests.tables.shop import ALL

EXAMPLE = Path(__file__).with_name("gpu_power.py")
MODULES = ("gpu_power", "broken_section")

#: Failing sections -> their errors.
BROKEN = {
    "broken_section:fails": "ZeroDivisionError: division by zero",
    "broken_section:speechless": "KeyError: 'no word'",
    "broken_section:lost": "AttributeError: module 'broken_section' has no attribute 'lost'",
    "no_such_module_of_a_test:section": "ModuleNotFoundError: No module named 'no_such_module_of_a_test'",
}

BROKEN_SECTION = """
from pytest_agentbench import Note, Section
from pytest_agentbench.reports.document import say

def fails(view):
    return 1 / 0

def words():
    raise KeyError("no word")

def speechless(view):
    return Section("Speechless", (Note(say(words)),))
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns a function that installs a plugin whose entry points name sections."""

    def installed(**entries: str) -> None:
        site = tmp_path / "site"
        (site / "power-1.dist-info").mkdir(parents=True)
        (site / "power-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: power\nVersion: 1\n")
        declared = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (site / "power-1.dist-info/entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{declared}")
        shutil.copy(EXAMPLE, site / "gpu_power.py")
        (site / "broken_section.py").write_text(BROKEN_SECTION)
        monkeypatch.syspath_prepend(site)
        for name in MODULES:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return installed


def powered() -> Run:
    """Returns a run whose two GPUs took 712 W together."""
    gpus = {name: replace(GPU, power_w_mean=watts) for name, watts in (("0", 512.4), ("1", 200.0))}
    return run_of(*ALL, serving=replace(SERVING, gpus={**gpus, "2": GPU}))


def shown(found: Document, level: Level) -> str:
    return "\n".join(line.text for line in lines(found, level, 80))


def test_a_section_of_a_plugin(install: Install) -> None:
    """The section follows those of the package, with its measure and table. A run without GPUs does not have it."""
    install(power="gpu_power:section")
    run = powered()
    found = report(run)

    assert "GPU power" == found.sections[-1].title
    assert Measure(712.4, "W", "mean", digits=0) == measure(found, "GPU power")
    [table] = tables(found, "GPU")
    assert [("0", 512.4), ("1", 200.0)] == values_of(table)
    assert part(report(run_of(*ALL)), "GPU power") is None


def test_the_section_is_in_all_reports(install: Install, tmp_path: Path) -> None:
    """The section is on the first page, with -v, in report.md, in comments and in report.html, but not with -q."""
    install(power="gpu_power:section")
    run = powered()
    directory = run_directory(tmp_path / "reports" / run.id, *ALL)

    texts = {
        "first page": shown(report(run), Level.FIRST_PAGE),
        "-v": shown(report(run), Level.FULL),
        "report.md": markdown.write(run, directory).read_text(encoding="utf-8"),
        "comment.md": comment.write(run, directory).read_text(encoding="utf-8"),
        "report.html": page.write(run, directory).read_text(encoding="utf-8"),
    }

    assert [] == [name for name, text in texts.items() if "GPU power" not in text or "712" not in text]
    assert [] == [name for name in ("-v", "report.md", "report.html") if "mean W" not in texts[name] or "512" not in texts[name]]
    assert not any("GPU power" in line for line in headline_lines(report(run)))


@pytest.mark.parametrize("entry", BROKEN)
def test_a_section_that_fails(install: Install, tmp_path: Path, entry: str) -> None:
    """A failing plugin becomes a note with its error. The other sections, also those of other plugins, are written."""
    run = powered()
    without = report(run)
    install(broken=entry, power="gpu_power:section")
    directory = run_directory(tmp_path / "reports" / run.id, *ALL)
    found = report(run)

    section = part(found, "broken")
    assert section is not None
    [note] = section.blocks
    assert isinstance(note, Note)
    assert "bad" == note.tone
    [(name, error)] = said(found, phrases.section_failure)
    assert (entry, BROKEN[entry]) == (name, f"{type(error).__name__}: {error}")
    failure = phrases.section_failure(name, error)
    assert entry in failure
    assert markdown.prose(failure) in markdown.write(run, directory).read_text(encoding="utf-8")
    assert (without.headline, without.sections) == (found.headline, found.sections[:-2])
    assert Measure(712.4, "W", "mean", digits=0) == measure(found, "GPU power")
