"""`agentbench power`: its numbers and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.cli.power import size_of
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.stats.power import ASSUMED, ASSUMED_MEAN, Design, ScoreLevel
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite

Capture = pytest.CaptureFixture[str]


def suite(folder: Path, scenarios: int) -> str:
    """Creates a suite with this number of scenarios."""
    entry = {
        "question": "?",
        "ground_truth": "",
        "metadata": {"label_source": "hand"},
        "user_goals": [],
        "available_tools": [{"title": "find", "description": "Finds.", "type": "object", "properties": {}, "required": []}],
        "expected_tool_calls": [],
    }
    (folder / "data.json").write_text(json.dumps([{"id": str(number), **entry} for number in range(scenarios)]))
    keys = {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "data.json"}, "scorers": ["tsq", "repeated"]}
    (folder / "suite.yaml").write_text(json.dumps(keys))
    return str(folder)


def test_an_assumption(tmp_path: Path, capsys: Capture) -> None:
    """Without a run, the noise is an assumption, which is named. The drops are those that the gate's own planning computes."""
    assert 0 == main(["power", suite(tmp_path, 100), "--trials", "2,7"])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "shop: 100 scenarios; tsq of a trial varies by 0.346 around its scenario's mean (standard deviation), an assum"
    )
    designs = [Design(100, number, ASSUMED, level=ScoreLevel(ASSUMED_MEAN, ASSUMED_MEAN - ASSUMED)) for number in (2, 7)]
    assert [[str(each.trials), f"{each.smallest_drop():.3f}", f"{each.smallest_margin():.3f}"] for each in designs] == [
        line.split() for line in lines[2:4]
    ]
    assert ["0.01", "0.03", "0.05", "0.1"] == [line.split()[0] for line in lines[6:]]


def test_few_scenarios(tmp_path: Path, capsys: Capture) -> None:
    """For a suite that is too small to detect any drop, the table says "none"."""
    assert 0 == main(["power", suite(tmp_path, 2), "--trials", "1", "--of", "population"])
    assert ["1", "none", "none"] == capsys.readouterr().out.splitlines()[2].split()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--score", "tqs"), "suite.yaml: no score 'tqs' (did you mean 'tsq'?); known: repeated, tsq"),
        (
            ("--score", "repeated"),
            "repeated has no lowest or no highest value, so its detectable drop cannot be computed before a run",
        ),
        (("--run", "nightly"), "no run 'nightly'; known: none"),
    ],
)
def test_errors(tmp_path: Path, capsys: Capture, words: tuple[str, ...], sentence: str) -> None:
    """Unknown scores and runs, and scores without limits, are refused in one sentence."""
    assert 4 == main(["power", suite(tmp_path, 20), "--reports", str(tmp_path), *words])
    assert sentence in capsys.readouterr().err


def test_one_scenario(tmp_path: Path, capsys: Capture) -> None:
    """A suite with one scenario is refused, because at least two are needed."""
    assert 4 == main(["power", suite(tmp_path, 1)])
    assert "agentbench: shop: 1 scenario was measured, but 2 are needed; run more scenarios\n" == capsys.readouterr().err


def clustered(clusters: int) -> Suite:
    """Returns a suite with 60 scenarios in this number of clusters."""
    each = tuple(Scenario(str(number), (), cluster=str(number % clusters)) for number in range(60))
    return Suite("shop", Path("scenarios/shop"), each, dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 60))


def test_clusters() -> None:
    """Clusters count instead of scenarios, because scenarios of a cluster may fail together. With too few clusters, power is refused."""
    assert (20, "60 scenarios in 20 clusters, counted as 20") == size_of(clustered(20))
    with pytest.raises(
        ConfigError, match="shop: the 60 scenarios are in 5 clusters, which count as 5 independent scenarios, but 10 are needed"
    ):
        size_of(clustered(5))


@pytest.mark.parametrize("text", ["0", "1,x", ""])
def test_invalid_trials(tmp_path: Path, text: str) -> None:
    """An invalid value of --trials is a usage error."""
    with pytest.raises(SystemExit, match="4"):
        main(["power", suite(tmp_path, 20), "--trials", text])


def test_a_suites_own_scorer(tmp_path: Path, capsys: Capture) -> None:
    """The scale of a suite's own scorer is read in another process. The numbers are in its unit, here ten times those of a share."""
    folder = Path(suite(tmp_path, 100))
    code = "from pytest_agentbench import scorer\n@scorer(better='lower', range=(0, 10))\ndef marks(scenario, rollout): return 1\n"
    (folder / "own.py").write_text(code)
    keys = json.loads((folder / "suite.yaml").read_text())
    (folder / "suite.yaml").write_text(json.dumps({**keys, "scorers": ["tsq", "./own.py:marks"]}))

    tables = []
    for score in ("tsq", "marks"):
        assert 0 == main(["power", str(folder), "--trials", "2", "--score", score])
        tables.append(capsys.readouterr().out.splitlines())
    share, marks = ([float(word) for word in lines[2].split()[1:]] for lines in tables)
    assert [pytest.approx(10 * each, abs=0.006) for each in share] == marks
    assert tables[1][0].endswith("; lower is better, so a drop means that the score rises")
