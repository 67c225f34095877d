"""The reports of the reference runs still contain all numbers of earlier versions."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path

import pytest

from benchmarks.reference.store import EXPECTED, archive_of, read_archive
from pytest_agentbench.reports import markdown, terminal
from pytest_agentbench.reports.document import Document, Level
from pytest_agentbench.reports.page.layout import first_screen
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import FILE, read_run

#: Run -> report -> words with a digit, from reports of versions that wrote each report separately. A confidence of
#: 38.3 % on the page is left out, because it is 0.383 in all reports now, and so are the intervals and percentiles of timings that
#: are not usable, numbers that do not fit into the lines of the first page, and timings of all arms of a run together.
FACTS: dict[str, dict[str, list[str]]] = json.loads(lzma.decompress(Path(__file__).with_name("facts.json.xz").read_bytes()))


def words(text: str) -> set[str]:
    """Returns the words of a text without punctuation, and numbers without commas."""
    return set(re.findall(r"[A-Za-z0-9_./:-]*[A-Za-z0-9]", re.sub(r"[,\\]|<!-- -->", "", text.replace("`", " ").replace("**", " "))))


def printed(lines: Iterable[terminal.Line]) -> str:
    return "\n".join(line.text for line in lines)


def rendered(report: Document) -> dict[str, str]:
    """Returns the report at each level."""
    return {
        "-q": "\n".join(terminal.headline_lines(report)),
        "first page": printed(terminal.lines(report, Level.FIRST_PAGE, 80)),
        "-v": printed(terminal.lines(report, Level.FULL)),
        "report.md": "\n".join(markdown.lines(report, Level.VERBOSE)),
        "report.html": unescape(re.sub("<[^>]*>", " ", "\n".join(first_screen(report)))),
    }


@pytest.mark.parametrize("name", FACTS)
def test_no_number_is_missing(tmp_path: Path, name: str) -> None:
    """All numbers of the old reports of a run are in the new ones."""
    (tmp_path / FILE).write_bytes(read_archive(archive_of(name))[f"{EXPECTED}{FILE}"])
    run = read_run(tmp_path)

    texts = rendered(document(RunView(run, tmp_path, f"reports/{run.id}")))

    assert {} == {report: gone for report, known in FACTS[name].items() if (gone := {*known} - words(texts[report]))}
