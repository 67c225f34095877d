"""The page of a suite's history: whole, offline, and nothing in it is markup of others."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import fastjsonschema
import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.gate.baselines import write_baseline
from pytest_agentbench.gate.evidence import Evidence
from pytest_agentbench.reports.trend import html
from tests.gate.evidences import HASHES
from tests.gate.test_trend import history, night

HOSTILE = '<script src="https://evil/x.js"></script>&"\u202e'
VOID = {"meta", "br"}


class Tags(HTMLParser):
    """The elements of a page and their attributes; what is opened has to be closed."""

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
    """Names and commits of others open no element, load nothing, and are still to be read."""
    page = "\n".join(html(history(*nights(HOSTILE))))
    tags = Tags()
    tags.feed(page)

    assert [] == tags.open
    assert [] == tags.addresses
    assert "script" not in tags.seen
    assert "&lt;script src=" in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page


def test_nothing_to_compare() -> None:
    """`None.` is said of runs that were compared; of one run, and of runs with other scenarios and another cache, that nothing can be."""
    several = "\n".join(html(history(night(0), night(1))))
    one = "\n".join(html(history(night(0))))
    apart = "\n".join(html(history(night(0), night(1, cache="cold", content={**HASHES, "scenario": "another"}))))

    assert "<p>None.</p>" in several
    assert "2 runs, " in several
    assert "One run, " in one
    assert ["Nothing can be compared" in each for each in (several, one, apart)] == [False, True, True]


def test_nothing_was_measured() -> None:
    """A suite whose rollouts all came to nothing has a sentence under its heading."""
    page = "\n".join(html(history(Evidence(night(0).facts, {"shop": []}))))

    assert "<h2>shop</h2>\n<p>Nothing was measured: no run has a rollout that counts.</p>" in page


def test_the_page_says_what_happened() -> None:
    """A regression is in the table with both commits, its points are marked, and other setups have a line."""
    cached = [*nights(), night(3, cache="cold")]
    page = "\n".join(html(history(*cached)))

    row = next(line for line in page.splitlines() if 'class="fixed"' in line)
    words = dict.fromkeys(re.split("<[^>]*>", row))
    assert ["new, fixed", "shop tsq.mean", "n1", "n0", "n2"] == [word for word in words if re.fullmatch(r"new.*|shop.*|n\d", word)]
    assert {"fell", "rose", "setup"} <= {*re.findall(r'class="(\w+)" [cx]', page)}


def test_runs_of_one_day() -> None:
    """Below a picture are the days of the first and the last run, or, where that is one day, the times."""
    hours = [night(hour, 0.9, run=f"n{hour}", finished_at=f"2026-03-01T0{hour}:30:00+00:00") for hour in (5, 7)]
    axes = [re.findall(r'"axis"[^>]*>(2026[^<]*)<', "\n".join(html(history(*each)))) for each in (hours, nights())]

    assert [["2026-03-01 05:30", "2026-03-01 07:30"], ["2026-03-01", "2026-03-03"]] == [each[:2] for each in axes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with baselines of three nights."""
    for place, each in enumerate(nights()):
        write_baseline(each, "shop", tmp_path / f"{place}.jsonl")
    return tmp_path


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names each regression and both files; they lie where it was told, and the numbers are as their schema says."""
    assert 0 == main(["trend", str(folder), "--output", str(folder / "new" / "page")])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("new, fixed: shop tsq.mean -0.")
    assert lines[0].endswith(" in n1, against n0")
    assert [f"wrote {folder}/new/page/trend.html", f"wrote {folder}/new/page/trend.json"] == lines[-2:]
    schema = json.loads(resources.files("pytest_agentbench.runs").joinpath("schemas", "trend.json").read_text(encoding="utf-8"))
    fastjsonschema.compile(schema)(json.loads((folder / "new/page/trend.json").read_text(encoding="utf-8")))


def test_a_second_time(folder: Path) -> None:
    """Beside the baselines the files are replaced, and are no baselines themselves."""
    main(["trend", str(folder)])
    before = (folder / "trend.json").read_text()

    assert 0 == main(["trend", str(folder)])
    assert before == (folder / "trend.json").read_text()


def test_where_nothing_can_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one sentence."""
    assert 4 == main(["trend", str(folder), "--output", "/dev/null/x"])
    assert "/dev/null/x cannot be written: " in capsys.readouterr().err
