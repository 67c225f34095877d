"""trend.html: it is complete, works offline, and contains no foreign markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import fastjsonschema
import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.gate.baselines import write_baseline
from pytest_agentbench.gate.evidence import Evidence
from pytest_agentbench.reports.comparison_phrases import regression, regression_state
from pytest_agentbench.reports.trend import html, links_to_commits, links_to_runs, web_address
from pytest_agentbench.schemas import schema
from tests.gate.test_trend import history, night

HOSTILE = '<script src="https://evil/x.js"></script>&"\u202e'
VOID = {"meta", "br"}


class Tags(HTMLParser):
    """Collects the elements of a page with their attributes, and checks that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [
            f"{name}={value}" for name, value in attrs if name in ("src", "href", "action", "style") or name.startswith("on")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert tag == self.open.pop()


def nights(name: str = "n") -> list[Evidence]:
    return [night(day, share, run=f"{name}{day}", commit=f"{name}{day}") for day, share in enumerate((0.9, 0.3, 0.9))]


def test_hostile_names_are_text() -> None:
    """Foreign names and commits create no element, load nothing, and are readable."""
    page = "\n".join(html(history(*nights(HOSTILE), night(3, cache="cold"))))
    tags = Tags()
    tags.feed(page)

    assert [] == tags.open
    assert [] == tags.addresses
    assert "script" not in tags.seen
    assert "&lt;script src=" in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page


def test_tables_have_heads() -> None:
    """Cells of the table of regressions have row and column headers. The state has the colour."""
    page = "\n".join(html(history(*nights())))

    assert 6 + 3 == page.count('<th scope="col">')
    assert 1 == page.count('<th scope="row" class="good">')
    assert {"circle.good", "circle.bad", "th.good", "th.bad"} <= {*re.findall(r"[\w.]+(?= {)", page)}


def test_axes_and_links(tmp_path: Path) -> None:
    """Each chart has titles of both axes. Points, regressions and the table of runs link the pages of runs, and commits."""
    trend = history(*(night(day, share, run=f"n{day}", commit=f"c{day}") for day, share in enumerate((0.9, 0.3, 0.9))))
    page = tmp_path / "runs" / trend.runs[1].source / "report.html"
    page.parent.mkdir(parents=True)
    page.touch()
    links = {**links_to_runs(trend, tmp_path / "runs", tmp_path / "pages"), **links_to_commits(trend, "https://host/o/n")}
    shown = "\n".join(html(trend, links))

    assert f"../runs/{trend.runs[1].source}/report.html" == links["n1"]
    assert "n0" not in links  # It has no page.
    charts = shown.count("<figure")
    assert charts == shown.count(">runs in time order<")
    assert 1 <= shown.count(">mean score<") <= charts == shown.count(">mean score<") + shown.count(">ms<")
    assert re.search(r'<a href="../runs/[^"]*/report.html" aria-label="n1, c1: [^"]*"><circle class="bad"', shown)
    assert 'role="group"' in shown
    assert shown.count('<a href="https://host/o/n/commit/c1"><code>c1</code></a>') == 2


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@host.org:owner/name.git\n", "https://host.org/owner/name"),
        ("https://user:secret@host.org/owner/name.git", "https://host.org/owner/name"),
        ("ssh://git@host.org/owner/name", "https://host.org/owner/name"),
        ("/srv/git/name.git", ""),
        ("javascript:alert(1)", ""),
    ],
)
def test_the_address_of_a_remote(remote: str, address: str) -> None:
    """Only a remote on a server has an address, and it never contains a password."""
    assert address == web_address(remote)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a directory with baselines of three nights."""
    for place, each in enumerate(nights()):
        write_baseline(each, "shop", tmp_path / f"{place}.jsonl")
    return tmp_path


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints each regression and both files. They are in the given directory, and the numbers match their schema."""
    assert 0 == main(["trend", str(folder), "--output", str(folder / "new" / "page")])

    lines = capsys.readouterr().out.splitlines()
    [(group, series, found)] = history(*nights()).regressions()
    [line] = [line for line in lines if line.startswith(regression_state(found))]
    assert line.endswith(regression(group, series, found))
    assert ["n1", "n0"] == [word.strip(",") for word in line.split() if re.fullmatch(r"n\d,?", word)]
    assert [f"wrote {folder}/new/page/trend.html", f"wrote {folder}/new/page/trend.json"] == lines[-2:]
    fastjsonschema.compile(schema("trend"))(json.loads((folder / "new/page/trend.json").read_text(encoding="utf-8")))


def test_a_second_time(folder: Path) -> None:
    """Files in the directory of baselines are replaced, and are not read as baselines."""
    main(["trend", str(folder)])
    before = (folder / "trend.json").read_text()

    assert 0 == main(["trend", str(folder)])
    assert before == (folder / "trend.json").read_text()


def test_a_directory_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the files cannot be written, the error is one sentence."""
    assert 4 == main(["trend", str(folder), "--output", "/dev/null/x"])
    assert "/dev/null/x cannot be written: " in capsys.readouterr().err
