"""A suite's own scorer that counts mistakes: lower is better wherever its scores are read."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Json
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import say
from pytest_agentbench.reports.openmetrics import text
from pytest_agentbench.runs.run_file import read_run
from tests.findings import report_of, tables
from tests.project import Project

Capture = pytest.CaptureFixture[str]

#: The number of mistakes of each scenario is in a file, so that a second session can have other numbers.
SCORERS = """
from pathlib import Path
from pytest_agentbench import scorer

@scorer(better="lower", range=(0, {greatest}), unit="mistakes")
def mistakes(scenario, rollout):
    made = Path(__file__).with_name("made.txt").read_text().split()
    return int(made[int(scenario.id.rpartition("-")[2])])
"""

TEST = """
def test_mistakes(rollout, thresholds):
    assert rollout.score("mistakes") <= thresholds["mistakes"]
"""


def write_shop(project: Project, made: str, greatest: str, **keys: Any) -> None:
    """Creates a suite whose scenarios make these numbers of mistakes."""
    project.write("scenarios/shop/scorers.py", "import math\n" + SCORERS.format(greatest=greatest))
    project.write("scenarios/shop/made.txt", made)
    thresholds = {"mistakes": 3, "mistakes.mean": 1}
    spec: Json = {"scorers": ["./scorers.py:mistakes", "tsq"], "thresholds": thresholds, **keys}
    project.suite(scenarios=len(made.split()), test=TEST, **spec)


def verdicts(run: Json) -> dict[str, str]:
    """Maps each rule to its verdict."""
    return {rule["rule"]: rule["verdict"] for rule in run["gate"]["rules"]}


def test_a_scorer_that_counts_mistakes(project: Project) -> None:
    """A mean of 4/3 mistakes fails a threshold of 1, and the scenarios with most mistakes are the worst in every file."""
    write_shop(project, "0 3 1", "math.inf")

    project.run("--junitxml=junit.xml", "scenarios/shop").assert_outcomes(passed=3)

    run = project.run_json
    suite = run["suites"]["shop"]
    scale = {"better": "lower", "least": 0.0, "greatest": None, "unit": "mistakes", "declared": True, "threshold": None}
    assert scale == suite["scales"]["mistakes"]
    assert (1, {"mistakes.mean <= 1 of run": "FAIL"}) == (run["exit_status"], verdicts(run))
    assert [("shop-1", 3.0), ("shop-2", 1.0)] == [(each["id"], each["score"]) for each in suite["worst"]]
    assert ["shop-1", "shop-2", "shop-0"] == [each["scenario"] for each in suite["scenarios"]]
    assert [3] == [rate["scenarios"] for rate in suite["passes"]["pass_at"]]
    assert 1.0 == suite["passes"]["pass_at"][0]["value"]
    report = report_of(project.directory)
    found = read_run(project.directory).suites["shop"]
    assert (found.scales["mistakes"].text, say(suite_phrases.score, found.scores["mistakes"].mean)) == next(
        (row[1], row[2]) for row in tables(report, "score")[0].rows if row[0] == "mistakes"
    )
    assert pytest.approx(4 / 3) == suite["scores"]["mistakes"]["mean"]["value"]
    worst = next(table for table in tables(report, "scenario") if table.columns[-1].title not in ("mistakes", "tsq"))
    assert [3.0, 1.0] == [row[[column.title for column in worst.columns].index("mistakes")] for row in worst.rows]
    cases = ET.parse("junit.xml").iterfind("testsuite[@name='pytest']/testcase")
    properties = [{each.get("name"): each.get("value") for each in case.iter("property")} for case in cases]
    assert {"lower is better, 0 or more, mistakes"} == {each["mistakes_scale"] for each in properties}
    labels = 'better="lower",score="mistakes",suite="shop",unit="mistakes"'
    assert f"agentbench_score_mean{{{labels}}} 1.33" in text(read_run(project.directory)).decode()


@pytest.mark.slow
def test_rules_that_are_the_wrong_way_round(project: Project) -> None:
    """A rule that demands many mistakes, and a threshold outside of the scorer's range, are errors of the suite in one sentence."""
    write_shop(project, "0 3 1", "10", gate=["mistakes.mean >= 1"])
    said = project.run("scenarios/shop").stdout.str()
    assert "suite.yaml: gate rule 'mistakes.mean >= 1': lower mistakes is better, so use <=" in said

    write_shop(project, "0 3 1", "10", thresholds={"mistakes": 11})
    said = project.run("scenarios/shop").stdout.str()
    assert "the threshold mistakes: 11 is out of range: mistakes is between 0 and 10, so it would decide nothing" in said


@pytest.mark.slow
def test_runs_against_each_other(project: Project, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate, trend, comparison, promotion and exports treat more mistakes as worse, without the suite's code."""
    write_shop(project, "0 1 0 0 1 0 0 0", "10")
    project.run("scenarios/shop").assert_outcomes(passed=8)
    before = project.directory
    monkeypatch.chdir(project.root)
    assert 0 == main(["baseline", "promote", before.name])
    write_shop(project, "9 10 9 9 10 9 9 9", "10", isolation="process", gate=["mistakes.mean <= 0.5 vs baseline"])
    project.run("scenarios/shop")
    after, run = project.directory, project.run_json
    (project.root / "scenarios").rename(project.root / "elsewhere")
    capsys.readouterr()

    assert {"mistakes.mean <= 0.5 vs baseline": "FAIL", "mistakes.mean <= 1 of run": "FAIL"} == verdicts(run)
    assert 1 == main(["gate", after.name, "--baseline", before.name])
    assert 0 == main(["gate", before.name, "--baseline", after.name, "--gate", "mistakes.mean <= 0.5 vs baseline"])
    assert 4 == main(["baseline", "promote", after.name])
    assert "is worse than the old one for shop mistakes" in capsys.readouterr().err
    main(["compare", before.name, after.name])
    assert "+9.000 worse" in capsys.readouterr().out
    main(["trend", "reports"])
    (series,) = [
        each for each in json.loads(Path("reports/trend.json").read_text())["suites"]["shop"]["series"] if each["metric"] == "mistakes.mean"
    ]
    assert (False, 1) == (series["rising"], len(series["regressions"]))


@pytest.mark.slow
def test_exports(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """CSV files have the direction and unit of each score. In the files of NAT, a missing score gets the worst value."""
    write_shop(project, "0 11 1", "10")
    project.run("scenarios/shop")
    monkeypatch.chdir(project.root)
    assert 1 == project.run_json["suites"]["shop"]["score_errors"]["mistakes"]
    (failed,) = [each for each in project.rollouts if each.score_errors]
    assert (
        "ValueError: the score 11 is outside the range that its scorer declares (between 0 and 10) (scorers.py:6)"
        == failed.score_errors["mistakes"]
    )

    for format in ("csv", "nat"):
        assert 0 == main(["export", "latest", "--as", format, "--output", format])
    with Path("csv/scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["score"] == "mistakes"]
    assert [("lower", "mistakes")] * 3 == [(row["better"], row["score_unit"]) for row in rows]
    (output,) = Path("nat").rglob("mistakes_output.json")
    assert [0.0, 10.0, 1.0] == [item["score"] for item in json.loads(output.read_text())["eval_output_items"]]
    assert 0 == main(["rescore", "latest"])
    (rescored,) = Path("reports").glob("*-rescored")
    assert project.run_json["suites"]["shop"]["scales"] == json.loads((rescored / "run.json").read_text())["suites"]["shop"]["scales"]
