"""Pictures of runs with known numbers. The tests read the drawn values back from the axes."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from pytest_agentbench.backends.telemetry.engine_stats import CacheHits
from pytest_agentbench.cli import main
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics import registry
from pytest_agentbench.plots import TITLES, drawn, rollout_pictures
from pytest_agentbench.plots.canvas import label, legend, mark, save, style, whole
from pytest_agentbench.plots.comparisons import RunLoad, front, loads_of, qualities_of, titles
from pytest_agentbench.plots.points import points_of, settings_of, ttfts_of_arms
from pytest_agentbench.records import Score
from pytest_agentbench.runs.results import ArmResult, ArmsCompared
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tables import read_tables
from tests.made_runs import run_directory, run_of
from tests.tables.shop import ALL, BOUGHT, rollout

DATA = {
    *("throughput_vs_tsq_per_request_data", "throughput_vs_tsq_per_llm_call_data"),
    *("throughput_histogram_data", "throughput_histogram_per_llm_call_data"),
}
NAMES = {name.format(score="tsq") for name in TITLES}


def plot(*arguments: object) -> int:
    return main(["plot", *map(str, arguments)])


def test_points(tmp_path: Path) -> None:
    """A rollout without the score has no point. Calls of judges, of earlier attempts and failed calls are in no picture."""
    points = points_of(read_tables([run_directory(tmp_path / "run", *ALL)]), "tsq")

    assert [1.0, 0.0] == points.values.tolist()
    assert [150.0, 400.0] == points.measures["ttft"].tolist()  # the median of 100 and 200; one call
    assert [2.0, 1.0] == points.measures["llm_calls"].tolist()
    assert [4.0, 2.0] == points.measures["total_tokens"].tolist()  # generated tokens, as the toolkit counts
    assert [1.0, 1.0] == points.measures["total_duration"].tolist()
    assert [100.0, 200.0, 400.0] == points.calls["ttft"].tolist()
    assert ["run"] == points.kinds


def test_every_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There are six scatter plots, seven histograms and two pictures of runs. The report links all of them."""
    run = run_directory(tmp_path / "run", *ALL)

    assert 0 == plot(run)

    assert NAMES | DATA == {file.stem for file in (run / "plots").iterdir()}
    assert NAMES == {file.stem for file in (run / "plots").iterdir() if file.read_bytes().startswith(b"\x89PNG")}
    assert NAMES == {file.stem for _, file in drawn(run)}
    report = (run / "report.md").read_text()
    assert [] == [name for name in NAMES if f"(plots/{name}.png)" not in report]
    assert f"{run}/report.md has links to them" in capsys.readouterr().out


def test_text_of_a_picture(tmp_path: Path) -> None:
    """An SVG contains its labels with their units as text. The same run always gives the same file."""
    run = run_directory(tmp_path / "run", *ALL)

    for output in ("one", "two"):
        with style():
            save(
                rollout_pictures.scatter_pictures(points_of(read_tables([run]), "tsq"))["summary_throughput_vs_tsq"],
                tmp_path / f"{output}.svg",
            )

    one, two = ((tmp_path / f"{output}.svg").read_text() for output in ("one", "two"))
    assert one == two
    assert [] == [
        words
        for words in ("time to first token, median of its calls (ms)", "duration of the rollout (s)", "tsq (per rollout)")
        if words not in one
    ]


def test_many_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory of runs means all runs in it, each in its own colour. Several runs need --output."""
    for name in ("old", "new"):
        run_directory(tmp_path / "reports" / name, *ALL)

    assert 4 == plot(tmp_path / "reports")
    assert "2 runs have no common directory for the pictures; name one with --output DIR" in capsys.readouterr().err
    assert 0 == plot(tmp_path / "reports", "--format=svg", "--output", tmp_path / "plots")
    assert all(name in (tmp_path / "plots/ttft_vs_tsq.svg").read_text() for name in ("old", "new"))


def test_the_data(tmp_path: Path) -> None:
    """CSV files next to the pictures have a row for each point of a scatter plot, and for each call of a histogram."""
    run = run_directory(tmp_path / "run", *ALL)

    assert 0 == plot(run)

    points, calls, bars = (
        [*csv.DictReader((run / f"plots/{name}_data.csv").read_text(encoding="utf-8").splitlines())]
        for name in ("throughput_vs_tsq_per_request", "throughput_vs_tsq_per_llm_call", "throughput_histogram_per_llm_call")
    )
    assert [("shop-0", "1", "150", "4", "2"), ("shop-1", "0", "400", "2", "1")] == [
        (row["sample_id"], row["tsq_score"], row["median_ttft_ms"], row["total_tokens"], row["num_llm_calls"]) for row in points
    ]
    assert [("shop-0", "1", "100"), ("shop-0", "2", "200"), ("shop-1", "1", "400")] == [
        (row["sample_id"], row["llm_call_idx"], row["ttft_ms"]) for row in calls
    ]
    assert [{name: value for name, value in row.items() if name != "tsq_score"} for row in calls] == bars


@pytest.mark.parametrize("name", ["temperature", "agent.temperature"])
def test_colours_of_a_setting(tmp_path: Path, name: str) -> None:
    """Colours can show a setting of the agent, or the concurrency, with which a rollout ran."""
    runs = {}
    for directory, temperature in (("cold", 0.0), ("warm", 0.7)):
        suites = {"shop": replace(run_of(*ALL).suites["shop"], agent={"kind": "react", "temperature": temperature})}
        runs[directory] = read_run(run_directory(tmp_path / directory, *ALL, suites=suites))
    tables = read_tables([tmp_path / directory for directory in runs])

    assert [0.0, 0.0, 0.7, 0.7] == points_of(tables, "tsq", name, settings_of(runs)).colours.tolist()
    assert [8.0] * 4 == points_of(tables, "tsq", "concurrency", settings_of(runs)).colours.tolist()
    assert ["react"] * 4 == points_of(tables, "tsq", "agent.kind", settings_of(runs)).colours.tolist()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--score=tqs"], "no score 'tqs'"),
        (["--color-by=colour"], "no column of rollouts or setting 'colour'"),
        (["--color-by=scenario"], "scenario has 9 values, but there are 8 colours; choose another column with --color-by"),
    ],
)
def test_invalid_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    """The error about an invalid choice says what would work, and no directory is left behind."""
    run = run_directory(tmp_path / "run", *(replace(BOUGHT, scenario=f"s{number}") for number in range(9)))

    assert 4 == plot(run, *arguments)

    assert sentence in capsys.readouterr().err
    assert not (run / "plots").exists()


def test_nothing_measured(tmp_path: Path) -> None:
    """A run without a score is an error, not an empty picture."""
    with pytest.raises(ConfigError, match="no rollout of these runs has a score, so there is nothing to draw"):
        points_of(read_tables([run_directory(tmp_path / "run", rollout(status="infra_error"))]), "tsq")


def test_without_times(tmp_path: Path) -> None:
    """Pictures of rollouts without calls say that nothing was measured."""
    run = run_directory(tmp_path / "run", replace(BOUGHT, calls=()))

    assert 0 == plot(run, "--format", "svg")
    assert "not measured" in (run / "plots/ttft_histogram.svg").read_text()


def test_a_line() -> None:
    """The line is fitted by least squares, if both x and y vary."""
    x = np.array([1.0, 2.0, 3.0])

    assert (2.0, 1.0, 1.0) == pytest.approx(rollout_pictures.line(x, 2 * x + 1))
    assert rollout_pictures.line(x, np.ones(3)) is None
    assert rollout_pictures.line(x[:2], x[:2]) is None


def test_bins() -> None:
    """Bins of TTFT are 5 ms wide up to 500 ms, and longer values get a hundred bins. Small counts have a bin each."""
    assert {5.0} == {*np.diff(rollout_pictures.edges(np.array([3.0, 412.0]), "ttft")).tolist()}
    assert 101 == len(rollout_pictures.edges(np.array([3.0, 1412.0]), "ttft"))
    assert [1.5, 2.5, 3.5, 4.5] == rollout_pictures.edges(np.array([2.0, 4.0]), "llm_calls").tolist()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12))
def test_the_front(pairs: list[tuple[int, int]]) -> None:
    """The front has the runs that no other run dominates, each pair of numbers once."""
    loads = [RunLoad(str(number), *map(float, pair)) for number, pair in enumerate(pairs)]
    best = {pair for pair in pairs if not any(a <= pair[0] and b >= pair[1] and (a, b) != pair for a, b in pairs)}

    assert sorted(best) == [(each.ttft_ms, each.output_tokens_per_s) for each in front(loads)]


def test_matplotlib_is_imported_by_nothing_else() -> None:
    """A session, its reports and other commands do not import matplotlib, even if it is installed."""
    code = "import sys, pytest_agentbench.reports.markdown, pytest_agentbench.cli.plot; sys.exit('matplotlib' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If matplotlib is missing, the error says how to install it."""
    run = run_directory(tmp_path / "run", replace(BOUGHT, scores={"tsq": Score(1.0)}))
    monkeypatch.setattr("pytest_agentbench.plots.find_spec", lambda _: None)

    assert 4 == plot(run)
    assert "pip install 'pytest-agentbench[plots]'" in capsys.readouterr().err


def arms(*found: ArmResult) -> ArmsCompared:
    return ArmsCompared(found, "interleaved", (), ())


def arm(name: str, rollouts_per_hour: float | None, output_tokens_per_s: float | None) -> ArmResult:
    rates = {"rollouts_per_hour": rollouts_per_hour, "output_tokens_per_s": output_tokens_per_s}
    counts: Any = {"blocks": 2, "rollouts": {}, "calls": 9, "failed_calls": 0, "busy_s": 10.0}
    facts: Any = {"metrics": {**dict.fromkeys(registry.rates()), **rates}, "goodput": None, "prefix_cache": CacheHits(None, None, None)}
    return ArmResult(name=name, kind="backend", value=name, model="m", load_s=1.0, failure="", **counts, **facts)


def test_arms_are_points_of_their_own(tmp_path: Path) -> None:
    """Each arm of a session has its own rates and TTFT, not those of the session. A failed arm has no point."""
    bought = [replace(BOUGHT, variant=name) for name in ("old", "new")]
    run = run_of(BOUGHT, ab=arms(arm("old", 5744.0, 240.0), arm("new", 5088.0, 212.0), arm("dead", None, None)))
    suite = next(iter(run.suites.values()))
    run = replace(run, suites={f"shop-{name}": replace(suite, variant=name) for name in ("old", "new", "dead")})
    tables = read_tables([run_directory(tmp_path / "run", *bought)])

    assert [("x shop-old", 5744.0), ("x shop-new", 5088.0)] == [(each.name, each.rollouts_per_hour) for each in qualities_of(run, "x")]
    ttfts = ttfts_of_arms(tables, "run")
    assert {"new": 150.0, "old": 150.0} == ttfts
    assert [RunLoad("x old", 150.0, 240.0), RunLoad("x new", 150.0, 212.0)] == [*loads_of(run, "x", {**ttfts, "dead": 1.0})]


def test_runs_without_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without the score is left out of scatter plots, and a sentence says so."""
    for name, rollouts in (("well", ALL), ("dead", [rollout(status="infra_error")])):
        run_directory(tmp_path / "reports" / name, *rollouts)

    assert 0 == plot(tmp_path / "reports", "--output", tmp_path / "plots")
    assert "no points, because no rollout has tsq: dead shop" in capsys.readouterr().out


def test_more_runs_than_colours(tmp_path: Path) -> None:
    """All runs of a directory fit into one picture. No two have the same mark, and their names do not shrink its area."""
    for number in range(9):
        run_directory(tmp_path / "reports" / f"a-run-of-one-night-{number}", *ALL)

    assert 0 == plot(tmp_path / "reports", "--format=svg", "--output", tmp_path / "plots")

    assert 9 == (tmp_path / "plots/quality_vs_speed.svg").read_text().count(">a-run-of-one-night-")
    assert 64 == len({mark(number) for number in range(64)})
    few, many = (Figure(figsize=(9, 6), layout="constrained") for _ in range(2))
    for figure, count in ((few, 1), (many, 40)):
        axis = figure.subplots()
        for number in range(count):
            axis.plot([1.0], [1.0], "o", label=f"a run of one night {number}")
        legend(figure, axis)
        figure.draw_without_rendering()
    heights = [figure.axes[0].get_position().height * figure.get_figheight() for figure in (few, many)]
    assert heights[1] > 0.8 * heights[0]


def test_a_legend_is_no_wider_than_its_picture() -> None:
    """A legend of long names has as many columns as fit."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axis = figure.subplots()
    for number in range(4):
        axis.plot([1.0], [1.0], "o", label=f"20261123-14482{number}-a-name")
    with style():
        legend(figure, axis, "run")
        figure.draw_without_rendering()
    (drawn_legend,) = figure.legends
    box = drawn_legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


@pytest.mark.parametrize("beginning", ["20261123-144825-a-night-of-the-great-comparison banking-of-all-customers-arm", "W" * 90])
def test_names_that_begin_alike(beginning: str) -> None:
    """Shortened names of A/B runs still differ in the legend, and the legend with its title is inside the picture."""
    count = 20
    names = [f"{beginning}-{number:02}" for number in range(count)]
    with style():
        figure = Figure(figsize=(9, 6), layout="constrained")
        axis = figure.subplots()
        for number, name in enumerate(names):
            axis.plot([1.0], [1.0], mark(number)[1], label=label(name))
        legend(figure, axis, "run")
        figure.draw_without_rendering()
    (drawn_legend,) = figure.legends
    box = drawn_legend.get_window_extent()

    assert count == len({text.get_text() for text in drawn_legend.get_texts()})
    assert -1 < box.x0 < box.x1 < figure.bbox.width + 1
    assert 0 <= box.y0
    assert box.y1 <= axis.get_window_extent().y0


def test_ticks_of_counts() -> None:
    """An axis of counts has only integer ticks, and no axis has an offset."""
    with style():
        figure = Figure()
        axis = figure.subplots()
        axis.plot([2.5, 3.5], [29_763.6, 29_764.4])
        whole(axis.xaxis)
        figure.draw_without_rendering()
    assert all(label.get_text().isdigit() for label in axis.get_xticklabels())
    assert "" == axis.yaxis.get_offset_text().get_text()


def test_names_in_a_legend() -> None:
    """A run is labelled with its name if that is unique, otherwise with its directory."""
    runs = [run_of(id=f"20260304-{number}", name=name) for number, name in enumerate(("kv", "kv", "base", ""))]

    assert ["20260304-0", "20260304-1", "base", "20260304-3"] == titles(runs)
