"""Failures at the end of a session: secrets are still removed from logs, and a failing step does not affect the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.reports import markdown
from pytest_agentbench.runs.journal import FILE
from tests.findings import report_of, under
from tests.project import Project, family
from tests.robustness.processes import run_on_a_small_disk

pytestmark = pytest.mark.slow

SECRET = "sw0rd-fish-of-the-shop"

#: This conftest.py writes a secret to a log, as a service might do.
SPILLS = f"""
import pathlib, shutil
import pytest

def pytest_agentbench_rollout_finished(rollout):
    directory = max(pathlib.Path("reports").glob("2*"))
    (directory / "backend" / "spilled.log").write_text("password {SECRET}\\n")
"""

#: Maps a name to code of a conftest.py that fails at the end, and to the message about it.
FAILING = {
    "environment": (
        "def pytest_agentbench_update_environment(environment):\n    raise LookupError('no such lab')",
        "agentbench: pytest_agentbench_update_environment failed: LookupError('no such lab') (conftest.py:*)",
    ),
    "report": (
        "def pytest_agentbench_report(run, directory):\n    raise LookupError('no dashboard')",
        "agentbench: the report of conftest.py is not written: LookupError('no dashboard') (conftest.py:*)",
    ),
    "sessionfinish": (
        "def pytest_sessionfinish():\n    raise LookupError('no luck')",
        "agentbench: a plugin failed when the session ended: LookupError('no luck') (conftest.py:*)",
    ),
    "unconfigure": (
        "@pytest.hookimpl(tryfirst=True)\ndef pytest_unconfigure():\n    raise LookupError('no luck')",
        "agentbench: a plugin failed when the session ended: LookupError('no luck') (conftest.py:*)",
    ),
}


def logs_of(project: Project) -> str:
    return "".join(log.read_text() for log in project.root.glob("reports/2*/backend/*.log"))


@family("name", {each: [each] for each in FAILING}, "sessionfinish")
def test_a_plugin_fails(project: Project, monkeypatch: pytest.MonkeyPatch, name: str, way: tuple[str, ...]) -> None:
    """A plugin that fails at the end is named with its line.

    Secrets are removed from logs, reports are written, and the session does not pass.
    """
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    code, sentence = FAILING[name]
    project.suite(scenarios=2)
    project.write("conftest.py", f"{SPILLS}\n{code}\n")

    result = project.run(*way, "scenarios/shop")

    result.stdout.fnmatch_lines([sentence])
    assert "password [redacted]" in logs_of(project)
    assert SECRET not in logs_of(project)
    run = project.run_json
    assert [sentence.removeprefix("agentbench: ").removesuffix("*)")] == [each[: each.rindex(":") + 1] for each in run["losses"]]
    assert (result.ret, 2) == (run["exit_status"], run["suites"]["shop"]["rollouts"]["ok"])
    assert (1, "FAIL") == (run["exit_status"], run["verdict"]) or (3, "INTERNAL ERROR") == (run["exit_status"], run["verdict"])
    assert [(loss,) for loss in run["losses"]] == under(report_of(project.directory), "lost")
    report = (project.directory / "report.md").read_text()
    assert all(markdown.prose(loss) in report for loss in run["losses"])
    assert report.splitlines()[0].partition(": ")[2].startswith(run["verdict"])


def test_the_redaction_fails(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a plugin fails to redact run.json, the file is not written. Secrets are still removed from logs, and records are kept."""
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    project.suite(scenarios=2)
    code = "def pytest_agentbench_redact(text):\n    if '\"schema\"' in text[:99]:\n        raise LookupError('no list of names')\n"
    project.write("conftest.py", f"{SPILLS}\n{code}")

    result = project.run("scenarios/shop")

    assert 3 == result.ret
    result.stdout.fnmatch_lines(["agentbench: the run cannot be summarised: LookupError('no list of names') (conftest.py:*)"])
    (directory,) = project.root.glob("reports/2*")
    assert not (directory / "run.json").exists()
    assert 2 == len((directory / FILE).read_text().splitlines())
    assert SECRET not in logs_of(project)


def test_a_plugin_fails_at_the_start(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If pytest ends before there are tests, secrets are still removed from logs."""
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    project.suite(scenarios=2)
    code = f"""
import pathlib
import pytest

@pytest.hookimpl(trylast=True)
def pytest_sessionstart():
    directory = max(pathlib.Path("reports").glob("2*"))
    (directory / "spilled.log").write_text("password {SECRET}")
    raise LookupError("no luck")
"""
    project.write("conftest.py", code)

    result = project.run("scenarios/shop")

    assert 3 == result.ret
    (log,) = project.root.glob("reports/2*/spilled.log")
    assert "password [redacted]************" == log.read_text()


REPORTS = ("run.json", "report.md", "comment.md", "metrics.txt", "summary.md")


@pytest.mark.parametrize("lost", REPORTS)
def test_one_report_cannot_be_written(project: Project, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """A report that cannot be written is named with the reason. The other reports are written and say so, and the session does not pass."""
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    project.suite(scenarios=1)
    blocks = f'    (directory / "{lost}").mkdir()\n'
    own = 'def pytest_agentbench_report(run, directory):\n    (directory / "own.txt").write_text(run.id)\n'
    project.write("conftest.py", f"{SPILLS}{blocks}\n{own}")

    result = project.run("--agentbench-ci=github", "scenarios/shop")

    assert 3 == result.ret
    result.stdout.fnmatch_lines([f"agentbench: *is not written: [[]Errno 21[]] Is a directory: '*{lost}'"])
    assert {*REPORTS, "own.txt"} - {lost} == {name for name in (*REPORTS, "own.txt") if (project.directory / name).is_file()}
    for name in {"report.md", "comment.md", "metrics.txt"} - {lost}:
        assert "INTERNAL ERROR" in (project.directory / name).read_text(), name
    if lost != "run.json":
        assert (3, "INTERNAL ERROR", 1) == (*(project.run_json[key] for key in ("exit_status", "verdict")), len(project.run_json["losses"]))
    assert SECRET not in logs_of(project)


def test_a_plugins_report_fails(project: Project) -> None:
    """If one of several plugins' reports fails, those after it are still written."""
    project.suite(scenarios=1)
    reports = "import pathlib\n\nclass Reports:\n    def pytest_agentbench_report(self, run, directory):\n        {body}\n"
    project.write("good.py", reports.format(body='(directory / "good.txt").write_text("good")'))
    project.write("bad.py", reports.format(body='raise LookupError("bad")'))
    order = "for name in ('good', 'bad', 'good'):\n        config.pluginmanager.register(__import__(name).Reports())"
    project.write("conftest.py", f"import sys; sys.path.insert(0, '.')\n\ndef pytest_configure(config):\n    {order}\n")

    result = project.run("scenarios/shop")

    assert 3 == result.ret
    assert "good" == (project.directory / "good.txt").read_text()


def test_the_reports_are_removed(project: Project) -> None:
    """If the directory of reports is removed during the session, records and reports are written again, and the run can be resumed."""
    project.suite(scenarios=3)
    removes = "    if rollout.scenario == 'shop-1':\n        shutil.rmtree('reports')\n"
    project.write("conftest.py", f"import shutil\n\ndef pytest_agentbench_rollout_finished(rollout):\n{removes}")

    result = project.run("scenarios/shop")

    assert 3 == result.ret
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["agentbench: logs and samples are lost, rollouts.jsonl and messages.jsonl are not: run directory 2*"])
    assert {"shop-0", "shop-1", "shop-2"} == {rollout.scenario for rollout in project.rollouts}
    assert 3 == project.run_json["suites"]["shop"]["rollouts"]["ok"]
    project.write("conftest.py", "")
    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=3)


def test_no_space_for_the_reports(project: Project) -> None:
    """A file that does not fit on the disk is named, the others are written, and the results are on the screen."""
    project.suite(scenarios=1)
    limit = 8_000  # Bytes of the largest file: the only record fits into it, but run.json does not

    done = run_on_a_small_disk(project, limit)

    assert 3 == done.returncode, done.stdout
    assert "agentbench: run.json is not written: [Errno 27] File too large" in done.stdout
    assert [["shop", "1"]] == [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("shop  ")]
    assert "INTERNALERROR" not in done.stdout + done.stderr
    (directory,) = project.root.glob("reports/2*")
    assert "run.json is not written" in (directory / "report.md").read_text()


def test_an_absurd_score(project: Project) -> None:
    """A number that is too large for statistics is not a score: the scorer has failed, and the session ends with all reports."""
    project.suite(scenarios=2, scorers=["tsq", "./scorer.py:absurd"], thresholds={"tsq": 0.5, "absurd.mean": 0.5})
    project.write("scenarios/shop/scorer.py", "def absurd(scenario, rollout):\n    return 1e200\n")

    result = project.run("scenarios/shop")

    assert 6 == result.ret
    error = "ValueError: 1e+200 is not a score, which is a number between -1e+15 and 1e+15 (scorer.py:1)"
    assert [{"absurd": error}] * 2 == [rollout.score_errors for rollout in project.rollouts]
    assert {"absurd": 2} == project.run_json["suites"]["shop"]["score_errors"]
    assert Path(project.directory / "report.md").is_file()
    assert [] == json.loads((project.directory / "run.json").read_text())["losses"]
