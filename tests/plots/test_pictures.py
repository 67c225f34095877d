"""Pictures of runs whose numbers are known: what is drawn is read back from the axes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.cli import main
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.plots import TITLES, drawn, histograms, scatter
from pytest_agentbench.plots.canvas import save, style
from pytest_agentbench.plots.points import points_of
from pytest_agentbench.plots.runs import Load, front, titles
from pytest_agentbench.records import Score
from pytest_agentbench.tables import read_tables
from tests.made_runs import run_directory, run_of
from tests.tables.shop import ALL, BOUGHT, rollout

NAMES = {name.format(score="tsq") for name in TITLES}


def plot(*arguments: object) -> int:
    return main(["plot", *map(str, arguments)])


def test_points(tmp_path: Path) -> None:
    """A rollout without the score has no point; calls of judges, of earlier attempts and failed ones are in none."""
    points = points_of(read_tables([run_directory(tmp_path / "run", *ALL)]), "tsq")

    assert [1.0, 0.0] == points.values.tolist()
    assert [150.0, 400.0] == points.measures["ttft"].tolist()  # the median of 100 and 200; one call
    assert [2.0, 1.0] == points.measures["llm_calls"].tolist()
    assert [204.0, 102.0] == points.measures["total_tokens"].tolist()
    assert [1.0, 1.0] == points.measures["total_duration"].tolist()
    assert [100.0, 200.0, 400.0] == points.calls["ttft"].tolist()
    assert ["run"] == points.kinds


def test_every_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The six scatters and seven histograms under their names, and two of runs; the report has links to all of them."""
    run = run_directory(tmp_path / "run", *ALL)

    assert 0 == plot(run)

    assert NAMES == {file.stem for file in (run / "plots").iterdir()}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (run / "plots").iterdir())
    assert NAMES == {file.stem for _, file in drawn(run)}
    report = (run / "report.md").read_text()
    assert [] == [name for name in NAMES if f"(plots/{name}.png)" not in report]
    assert f"{run}/report.md has links to them" in capsys.readouterr().out


def test_text_of_a_picture(tmp_path: Path) -> None:
    """An SVG has its words as text, among them the units; the same run gives the same file."""
    run = run_directory(tmp_path / "run", *ALL)

    for output in ("one", "two"):
        with style():
            save(scatter.pictures(points_of(read_tables([run]), "tsq"))["summary_throughput_vs_tsq"], tmp_path / f"{output}.svg")

    one, two = ((tmp_path / f"{output}.svg").read_text() for output in ("one", "two"))
    assert one == two
    assert [] == [words for words in ("time to first token (ms)", "duration of the rollout (s)", "tsq (per rollout)") if words not in one]


def test_many_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory of runs is all of them, each in a colour of its own; several runs need --output."""
    for name in ("old", "new"):
        run_directory(tmp_path / "reports" / name, *ALL)

    assert 4 == plot(tmp_path / "reports")
    assert "2 runs belong into no one of their directories; name one for the pictures with --output DIR" in capsys.readouterr().err
    assert 0 == plot(tmp_path / "reports", "--format=svg", "--output", tmp_path / "plots")
    assert all(name in (tmp_path / "plots/ttft_vs_tsq.svg").read_text() for name in ("old", "new"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--score=tqs"], "no score 'tqs'"),
        (["--color-by=colour"], "no column of rollouts 'colour'"),
        (["--color-by=scenario"], "scenario has 9 values, and colours tell 8 apart; choose another column with --color-by"),
    ],
)
def test_what_cannot_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    """A sentence says what would work, and no directory is left."""
    run = run_directory(tmp_path / "run", *(replace(BOUGHT, scenario=f"s{number}") for number in range(9)))

    assert 4 == plot(run, *arguments)

    assert sentence in capsys.readouterr().err
    assert not (run / "plots").exists()


def test_nothing_measured(tmp_path: Path) -> None:
    """A run without a score is no empty picture."""
    with pytest.raises(ConfigError, match="no rollout of these runs has a score, so there is nothing to draw"):
        points_of(read_tables([run_directory(tmp_path / "run", rollout(status="infra_error"))]), "tsq")


def test_without_times(tmp_path: Path) -> None:
    """Rollouts without a call have pictures that say that nothing was measured."""
    run = run_directory(tmp_path / "run", replace(BOUGHT, calls=()))

    assert 0 == plot(run, "--format", "svg")
    assert "not measured" in (run / "plots/ttft_histogram.svg").read_text()


def test_a_line() -> None:
    """Least squares where both sides vary."""
    x = np.array([1.0, 2.0, 3.0])

    assert (2.0, 1.0, 1.0) == pytest.approx(scatter.line(x, 2 * x + 1))
    assert scatter.line(x, np.ones(3)) is None
    assert scatter.line(x[:2], x[:2]) is None


def test_bins() -> None:
    """5 ms for TTFT up to half a second, a hundred beyond it; few counts have a bin each, around the count."""
    assert {5.0} == {*np.diff(histograms.edges(np.array([3.0, 412.0]), "ttft")).tolist()}
    assert 101 == len(histograms.edges(np.array([3.0, 1412.0]), "ttft"))
    assert [1.5, 2.5, 3.5, 4.5] == histograms.edges(np.array([2.0, 4.0]), "llm_calls").tolist()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12))
def test_the_front(pairs: list[tuple[int, int]]) -> None:
    """The runs than which none is at least as good in both and better in one, once each pair of numbers."""
    loads = [Load(str(number), *map(float, pair)) for number, pair in enumerate(pairs)]
    best = {pair for pair in pairs if not any(a <= pair[0] and b >= pair[1] and (a, b) != pair for a, b in pairs)}

    assert sorted(best) == [(each.ttft_ms, each.output_tokens_per_s) for each in front(loads)]


def test_matplotlib_is_imported_by_nothing_else() -> None:
    """A session, its reports and the other commands do without it, whether or not it is there."""
    code = "import sys, pytest_agentbench.reports.markdown, pytest_agentbench.cli.plot; sys.exit('matplotlib' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is missing a sentence says what installs it."""
    run = run_directory(tmp_path / "run", replace(BOUGHT, scores={"tsq": Score(1.0)}))
    monkeypatch.setattr("pytest_agentbench.plots.find_spec", lambda _: None)

    assert 4 == plot(run)
    assert "pip install 'pytest-agentbench[plots]'" in capsys.readouterr().err


def test_names_in_a_legend() -> None:
    """A run is called as its user called it where no other run is called so; one without a name, by its directory."""
    runs = [run_of(id=f"20260304-{number}", name=name) for number, name in enumerate(("kv", "kv", "base", ""))]

    assert ["20260304-0", "20260304-1", "base", "20260304-3"] == titles(runs)
