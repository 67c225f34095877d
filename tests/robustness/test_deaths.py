"""Processes of a session that die in the middle of it: every test hears why, at once, and what has finished is kept."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_agentbench.journal import read_journal, sealed
from pytest_agentbench.records import Json
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background

Start = Callable[..., Background]

WAYS = pytest.mark.parametrize("way", [(), ("-n", "2")], ids=["one-process", "n2"])

STALLED: Json = {"text": "This takes its time.", "stall": {"after": 1, "ms": 300_000}}


def stalling(project: Project) -> None:
    """Six scenarios, of which the first two end at once and the others do not."""
    quick = [{"match": {"contains": f"Customer shop-{number}:"}, **FIND_THEN_ANSWER[1]} for number in (0, 1)]
    project.backend([*quick, STALLED])
    project.suite(scenarios=6, thresholds={"tsq": 0.0})


@WAYS
def test_the_engine_dies_in_the_middle(project: Project, way: tuple[str, ...]) -> None:
    """One ERROR has the exit code and the end of the engine's log, and ends the session; the finished rollouts are kept and counted."""
    project.backend([{"match": {"contains": "Customer shop-3:"}, "exit": True}, *FIND_THEN_ANSWER])
    project.suite(scenarios=8, thresholds={"tsq": 0.5, "tsq.mean": 0.5})

    result = project.run(*way, "--agentbench-concurrency=1", "--agentbench-retries=5", "scenarios/shop")

    assert 3 == result.parseoutcomes()["passed"]
    assert 1 <= result.parseoutcomes().get("errors", 1) <= (5 if way else 1)  # a worker goes on while another one has still to judge
    assert 6 == result.ret
    died = "`python -m pytest_agentbench.engine` died in the middle of the run (exit code 70); the end of engine.log:"
    gone = f"the backend 'embedded' is gone: {died}"
    result.stdout.fnmatch_lines([f"shop?shop-[3-7]?: infra_error: {gone}", "    *", "*agentbench: nothing more can run: the backend *"])
    assert 1 == result.stdout.str().count("the end of engine.log:\n")
    assert ["ok", "ok", "ok", "infra_error"] == [rollout.status for rollout in project.rollouts]
    run = project.run_json
    assert (6, "NOT MEASURED") == (run["exit_status"], run["verdict"])
    assert run["backend"]["failure"].startswith(gone)
    assert {"rollouts": 8, "finished": 4, "not_run": 4} == run["plan"]
    assert "The backend failed" in (project.directory / "report.md").read_text()


@WAYS
def test_the_pool_is_killed(project: Project, start: Start, way: tuple[str, ...]) -> None:
    """The test that waits is an ERROR at once that says that the pool is gone; the finished rollouts are in the journal and the report."""
    stalling(project)
    background = start(*way, "scenarios/shop")
    background.in_the_middle(finished=2)

    os.kill(background.child("pytest_agentbench.pool"), signal.SIGKILL)

    assert 6 == background.ended(60)
    assert "the pool is gone" in background.output
    assert {"shop-0", "shop-1"} == {rollout.scenario for rollout in background.rollouts}
    run = json.loads((background.directory / "run.json").read_text())
    assert "`python -m pytest_agentbench.pool` died in the middle of the run (exit code -9)" in run["backend"]["failure"]
    assert (6, 2) == (run["exit_status"], run["suites"]["shop"]["rollouts"]["ok"])
    assert "INTERNALERROR" not in background.output


@WAYS
def test_the_tap_is_killed(project: Project, start: Start, way: tuple[str, ...]) -> None:
    """Rollouts in flight end as infra_error, and an ERROR says that the tap is gone, once."""
    stalling(project)
    background = start(*way, "--agentbench-concurrency=3", "scenarios/shop")
    background.in_the_middle(finished=2)

    os.kill(background.child("pytest_agentbench.tap"), signal.SIGKILL)

    assert 6 == background.ended(60)
    assert re.search(r" 2 passed, [1-3] errors? in ", background.output)
    assert {"ok": 2, "infra_error": 3} == _counted([rollout.status for rollout in background.rollouts])
    assert (
        "infra_error: the tap is gone: `python -m pytest_agentbench.tap` died in the middle of the run (exit code -9)" in background.output
    )
    assert 1 == background.output.count("the end of tap.log:\n")


def _counted(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in words}


def test_the_pool_does_not_start(project: Project) -> None:
    """A pool that dies before it has answered anybody keeps nobody waiting: an ERROR has the end of its log."""
    project.suite(scenarios=2)
    project.write("aiohttp.py", "raise ImportError('this is not the aiohttp you are looking for')")

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*aiohttp you are looking for*"])


@WAYS
def test_a_hook_that_raises(project: Project, way: tuple[str, ...]) -> None:
    """A plugin that fails on a finished rollout makes that test an ERROR with the place; the others go on."""
    project.suite(scenarios=3)
    project.write(
        "conftest.py",
        """
def pytest_agentbench_rollout_finished(rollout):
    if rollout.scenario == "shop-1":
        raise LookupError("the dashboard is down")
""",
    )

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["shop?shop-1?: infra_error: the record could not be written: LookupError('the dashboard is down') (conftest.py:4)"]
    )


def run_on_a_small_disk(project: Project, limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A session in which no file gets larger than `limit` bytes."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments, "scenarios/shop"],
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def test_a_disk_that_is_full(project: Project) -> None:
    """When a record cannot be written its test is an ERROR that says so; no record is torn, and nothing waits."""
    project.suite(scenarios=12)
    limit = 20_000  # bytes of the largest file: a few records of these fit, twelve do not

    done = run_on_a_small_disk(project, limit, "--agentbench-concurrency=1")

    assert 6 == done.returncode, done.stdout
    assert "infra_error: the record could not be written: OSError(" in done.stdout
    (journal,) = project.root.glob("reports/2*")
    assert 1 <= len([*read_journal(journal)]) < 12


def test_a_record_that_fits_only_in_part(tmp_path: Path) -> None:
    """A record is written whole or not at all: one that does not fit raises, and leaves the journal as it was."""
    code = f"""
import resource
from pathlib import Path
from pytest_agentbench.journal import Journal
from pytest_agentbench.records import RolloutKey

resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
with Journal(Path({str(tmp_path)!r})) as journal:
    for number in (1, 2):
        journal.append(RolloutKey("shop", str(number)), b"x" * 99)
"""

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)

    assert 1 == done.returncode
    assert "OSError" in done.stderr
    assert sealed(b"x" * 99) + b"\n" == (tmp_path / "rollouts.jsonl").read_bytes()


def test_two_sessions_at_once(project: Project, start: Start) -> None:
    """Two sessions of one project have directories of their own, and neither trips over what the other writes beside them."""
    project.suite(scenarios=2)
    sessions = [start("scenarios/shop") for _ in range(2)]

    assert [0, 0] == [each.ended() for each in sessions]

    directories = [*project.root.glob("reports/2*")]
    assert [2, 2] == [len([*read_journal(directory)]) for directory in directories]


@pytest.mark.parametrize(
    "content", ["no json", "[1]", '{"embedded": [1]}', '{"embedded": {"shop[shop-0]": "long"}}', '{"embedded": {"shop[shop-0]": null}}']
)
def test_durations_that_cannot_be_used(project: Project, content: str) -> None:
    """What is known of earlier durations only helps the order: nonsense in that file is passed over, and written anew."""
    project.suite(scenarios=2)
    project.write("reports/durations.json", content)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=2)
    known = json.loads((project.root / "reports/durations.json").read_text())
    assert {"shop[shop-0]", "shop[shop-1]"} == known["embedded"].keys()
