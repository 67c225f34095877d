"""The suite hle, run by a real pytest with scripted answers: known values, failing judges, and a canary that is in no output."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Level
from pytest_agentbench.runs.run_file import read_run
from tests.findings import measure, report_of
from tests.project import Project

HLE = Path(__file__).parents[2] / "scenarios" / "hle"
SCRIPTED = "--agentbench-backend=scenarios/hle/scripted.yaml"


@pytest.fixture
def hle(project: Project) -> Project:
    """A project with the suite hle and a small suite."""
    project.suite(scenarios=1)
    shutil.copytree(HLE, project.root / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    return project


def test_known_values(hle: Project) -> None:
    """If eight of twelve answers are right with a confidence of 0.75, the report has an accuracy of 0.667 and a calibration error of 0.083.

    Records have the right answers. The canary of the data and its rationales are in no prompt, record or report.
    """
    backend = hle.root / "scenarios/hle/scripted.yaml"
    backend.write_text(backend.read_text() + f"request_log: {hle.root / 'requests.jsonl'}\n")

    result = hle.run("-m", "hle", SCRIPTED, "-v")

    result.assert_outcomes(passed=12, deselected=1)
    assert (0, "PASS", "PASS") == (result.ret, hle.run_json["verdict"], hle.run_json["gate"]["verdict"])
    report = report_of(hle.directory, Level.FULL)
    accuracy, calibration = (measure(report, label) for label in ("accuracy", "calibration"))
    assert ("0.667", "0.391", "0.862") == tuple(f"{each:.3f}" for each in (accuracy.value, accuracy.low, accuracy.high))
    assert ("0.083", "0.000") == tuple(f"{each:.3f}" for each in (calibration.value, calibration.low))
    answers = hle.run_json["suites"]["hle"]["answers"]["judged_answer"]
    assert (12, 12, 4, 12, 1) == tuple(answers[name] for name in ("questions", "answers", "judged", "confident", "bins"))
    assert [pytest.approx(each) for each in (8 / 12, 0.75, 0.75 - 8 / 12)] == [
        answers[name] for name in ("accuracy", "confidence", "calibration_error")
    ]
    rows = [json.loads(line) for line in (hle.root / "scenarios/hle/sample.jsonl").read_text().splitlines()]
    assert {row["id"]: row["answer"] for row in rows} == {each.scenario: each.reference for each in hle.rollouts}
    canary = re.findall(r"canary \S+", rows[0]["canary"])[0].removeprefix("canary ")
    written = [file for file in (hle.root / "reports").rglob("*") if file.is_file()]
    texts = {file.name: file.read_bytes().decode(errors="replace") for file in [*written, hle.root / "requests.jsonl"]}
    assert rows[0]["question"] in texts["requests.jsonl"]
    assert [] == [name for name, text in texts.items() if canary in text or any(row["rationale"] in text for row in rows)]
    assert canary not in result.stdout.str() + result.stderr.str()


@pytest.mark.slow
def test_a_judge_that_errs_is_counted(hle: Project) -> None:
    """If a judge gives no valid verdict, the answer has no score and is in no mean.

    Its test is an error, and the report counts such answers.
    """
    script = hle.root / "scenarios/hle/answers.yaml"
    script.write_text(script.read_text().replace('"correct": ', '"maybe": '))

    result = hle.run("-m", "hle", SCRIPTED)

    result.assert_outcomes(passed=8, errors=4, deselected=1)
    suite = hle.run_json["suites"]["hle"]
    assert {"judged_answer": 4} == suite["score_errors"]
    answers = suite["answers"]["judged_answer"]
    assert (8, 0, pytest.approx(7 / 8)) == (answers["answers"], answers["judged"], answers["accuracy"])
    [summary] = read_run(hle.directory).suites["hle"].answers.values()
    assert (
        suite_phrases.judged(summary, 4)
        == measure(report_of(hle.directory, Level.FIRST_PAGE), "accuracy").about
        != suite_phrases.judged(summary, 0)
    )


@pytest.mark.slow
def test_the_default_engine_and_missing_data(hle: Project) -> None:
    """Without a script the engine gives no right answer, so the run fails the suite's rule.

    If its data file is missing, the suite is skipped with a hint where to get it.
    """
    hle.write("backends/embedded.yaml", "kind: embedded\n")
    assert 12 == hle.run("scenarios/hle", "--agentbench-set=dataset.options.images=keep").parseoutcomes()["passed"]
    assert (1, "FAIL") == (hle.run_json["exit_status"], hle.run_json["verdict"])

    result = hle.run("scenarios/hle", "-rs", "--agentbench-set=dataset.file=hle.parquet")

    assert 1 == result.parseoutcomes()["skipped"]
    result.stdout.fnmatch_lines(["*hle.parquet does not exist: cais/hle is gated: * HF_TOKEN*"])
