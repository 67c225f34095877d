"""`agentbench import` turns results of another tool into a run, which the other commands can read."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
import yaml  # noqa: F401 - here, once: pytester forgets what a test imports, and libyaml's part of it does not load twice

from pytest_agentbench.cli import main
from pytest_agentbench.reports import markdown
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.run_file import read_run
from tests.exports.nat_job import call, item, tool, write_job
from tests.project import Project

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]

KEY = "sk-abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def job(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of the NeMo Agent Toolkit on two of the shop's three scenarios, in a project with the shop."""
    project.suite()
    monkeypatch.chdir(project.root)
    rows = [
        *call(0, "a", "100.0", ["100.2", "100.3"], "100.5", prompt_tokens=40, completion_tokens=2),
        *tool(0, "t", "shop__find_item", "100.5", "100.6"),
        *call(1, "b", "100.1", ["100.4"], "100.7"),
    ]
    items = [item("shop-1", 1.0, ["shop__find_item"], ["find_item"]), item("shop-2", 0.0, [], ["find_item"])]
    return write_job(project.root / "nat" / "job_1", ["A lamp.", f"My key is {KEY}."], items, rows)


def test_an_import_is_a_run(job: Path, capsys: Capture) -> None:
    """The command prints what it imported, what is unknown and where the run is.

    `show` prints the run with these notes, and as the tool would.
    """
    assert 0 == main(["import", "nat", "nat/job_1"])

    said = capsys.readouterr().out.splitlines()
    assert ["banking: 2 ok", "wrote reports/nat-job_1"] == [said[0], said[-1]]
    assert any(line.startswith("banking nat_tool_selection_quality: 0.500") for line in said)
    notes = [line.removeprefix("note: ") for line in said if line.startswith("note: ")]
    assert any("the toolkit writes the same for a workflow that failed" in note for note in notes)
    assert 0 == main(["show", "nat-job_1"])
    shown = capsys.readouterr().out
    report = Path("reports/nat-job_1/report.md").read_text()
    assert notes and all(note in shown and markdown.prose(note) in report for note in notes)
    assert re.search(r"^timing quality .*the toolkit stamped events in the agent's own process", shown, re.MULTILINE)
    assert "warn" == read_run(Path("reports/nat-job_1")).stopwatch.verdict
    assert 0 == main(["show", "nat-job_1", "--as", "nat"])
    assert "Total LLM Calls" in capsys.readouterr().out


def test_labels_of_a_suite(job: Path, capsys: Capture) -> None:
    """With --suite, labels come from the suite, scenarios without a result are counted, and the run can be rescored by our scorers."""
    assert 0 == main(["import", "nat", "nat/job_1", "--suite", "scenarios/shop"])
    assert "note: 1 of 3 scenarios of scenarios/shop have no result" in capsys.readouterr().out

    assert 0 == main(["rescore", "nat-job_1"])

    assert "shop tsq: mean none, now 0.500; 2 of 2 rollouts changed" in capsys.readouterr().out
    run = read_run(Path("reports/nat-job_1-rescored"))
    assert ("IMPORTED", ("nat_tool_selection_quality", "tsq")) == (run.verdict, run.suites["shop"].scorers)
    assert 0 == main(["show", "nat-job_1-rescored"])


def test_no_key_gets_into_a_run(job: Path) -> None:
    """Strings that look like keys are removed from the records, as in a session."""
    assert 0 == main(["import", "nat", "nat/job_1"])

    assert ["A lamp.", "My key is [redacted]."] == [each.answer for each in read_journal(Path("reports/nat-job_1"))]
    assert not any(KEY in file.read_text() for file in Path("reports/nat-job_1").iterdir())


def test_no_times_of_calls(job: Path, capsys: Capture) -> None:
    """If the job has no times of calls, the run has no split of rollout time, and `show --as` refuses it."""
    (job / "standardized_data_all.csv").unlink()
    assert 0 == main(["import", "nat", "nat/job_1"])

    assert 4 == main(["show", "nat-job_1", "--as", "aiperf"])

    said = "reports/nat-job_1 was imported from nat, which recorded no times of calls; leave out --as aiperf"
    assert f"agentbench: {said}\n" == capsys.readouterr().err
    assert read_run(Path("reports/nat-job_1")).performance.split is None


def test_a_second_import(job: Path) -> None:
    """If a directory is imported twice, the first run is not overwritten, and `latest` does not change."""
    for _ in range(2):
        assert 0 == main(["import", "nat", "nat/job_1"])

    assert ["nat-job_1", "nat-job_1-2"] == sorted(each.name for each in Path("reports").glob("*") if not each.name.startswith("."))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nat", "nowhere"], "nowhere is not a directory; pass the directory that nat wrote"),
        (
            ["nta", "nat"],
            "no tool 'nta' (did you mean 'nat'?); known: harbor, nat, toolorchestra, or an import path such as my_package.tools:nta",
        ),
        (["harbor", "nat/job_1"], "nat/job_1: contains no trial (a directory with config.json); pass the directory of a job"),
        (
            ["nat", "nat/job_1", "--suite", "scenarios/other"],
            "scenarios/other: has no scenario 'shop-1', which nat ran; name its suite with --suite",
        ),
    ],
)
def test_wrong_arguments_of_import(project: Project, job: Path, capsys: Capture, arguments: list[str], why: str) -> None:
    """A wrong argument is an error of one sentence, and no run is written."""
    project.suite("other")

    assert 4 == main(["import", *arguments])

    assert f"agentbench: {why}\n" == capsys.readouterr().err
    assert [] == [*Path("reports").glob("nat*")]


def test_an_import_has_all_keys_of_a_session(project: Project, job: Path) -> None:
    """An imported run has all keys of a session's run.json and the hashes of its scenarios, so that it can be read and compared
    like one.
    """
    project.backend()
    project.run("scenarios/shop")
    assert 0 == main(["import", "nat", "nat/job_1", "--suite", "scenarios/shop"])

    session, run = project.run_json, json.loads(Path("reports/nat-job_1/run.json").read_text())

    assert set() == set(session) - set(run)
    for part in ("plan", "performance", "stopwatch", "environment"):
        assert set(session[part]) == set(run[part])
    (of_session,), (of_import,) = session["suites"].values(), run["suites"].values()
    assert set(of_session) == set(of_import)
    hashes = {each.scenario: each.content["scenario"] for each in project.rollouts}
    assert [hashes["shop-1"], hashes["shop-2"]] == [each.content["scenario"] for each in read_journal(Path("reports/nat-job_1"))]
    assert 100 == datetime.fromisoformat(run["started_at"]).timestamp()
