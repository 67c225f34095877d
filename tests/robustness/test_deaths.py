"""If processes of a session die for good, each waiting test gets the reason at once, and finished rollouts are kept."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.lib.process import lives
from pytest_agentbench.records import Json
from pytest_agentbench.reports import phrases
from pytest_agentbench.runs.journal import read_journal
from tests.findings import report_of, said
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.robustness.processes import Background, run_on_a_small_disk
from tests.waits import wait_for

pytestmark = pytest.mark.slow

Start = Callable[..., Background]


STALLED: Json = {"text": "This takes its time.", "stall": {"after": 1, "ms": 300_000}}


def stalling(project: Project) -> None:
    """Creates six scenarios, of which the first two end at once and the others do not end."""
    quick = [{"match": {"contains": f"Customer shop-{number}:"}, **FIND_THEN_ANSWER[1]} for number in (0, 1)]
    project.backend([*quick, STALLED])
    project.suite(scenarios=6, thresholds={"tsq": 0.0})


@WAYS
def test_an_engine_that_dies_repeatedly(project: Project, way: tuple[str, ...]) -> None:
    """If the engine dies repeatedly, one ERROR has the exit code and the end of the log, and the session ends.

    Finished rollouts are kept.
    """
    deadly = [{"match": {"contains": f"Customer shop-{number}:"}, "exit": True} for number in range(3, 8)]
    project.backend([*deadly, *FIND_THEN_ANSWER])
    project.suite(scenarios=8, thresholds={"tsq": 0.5, "tsq.mean": 0.5})

    result = project.run(*way, "--agentbench-concurrency=1", "--agentbench-retries=5", "scenarios/shop")

    assert 3 == result.parseoutcomes()["passed"]
    # A worker continues while another one still has tests to judge.
    assert 1 <= result.parseoutcomes().get("errors", 1) <= (5 if way else 3)
    assert 6 == result.ret
    died = "`python -m pytest_agentbench.engine` died in the middle of the run (exit code 70); the end of engine.log:"
    gone = f"the backend 'embedded' is gone: {died}"
    result.stdout.fnmatch_lines([f"shop?shop-[5-7]?: infra_error: {gone}", "    *", "*agentbench: nothing more can run: the backend *"])
    assert 1 == result.stdout.str().count("the end of engine.log:\n")
    alone = "engine died 3 times while this rollout ran, the last time with nothing else in flight; run it alone with -k"
    assert [alone, alone] == [rollout.reason for rollout in project.rollouts if rollout.scenario in ("shop-3", "shop-4")]
    run = project.run_json
    assert (6, "NOT MEASURED") == (run["exit_status"], run["verdict"])
    assert run["backend"]["failure"].startswith(gone)
    assert {"engine": 9} == run["interruptions"]["deaths"]
    assert 3 == run["suites"]["shop"]["rollouts"]["ok"]
    assert [gone] == [run.backend.failure[: len(gone)] for (run,) in said(report_of(project.directory), phrases.backend_failure)]


def until_it_ends(background: Background, part: str) -> None:
    """Kills a part of a session and its replacements until the session gives up."""
    while background.process.poll() is None and "nothing more can run" not in background.output:
        for pid in background.children(part):
            os.kill(pid, signal.SIGKILL)
            wait_for(functools.partial(is_gone, pid), "its end")


def is_gone(pid: int) -> bool:
    return not lives(pid)


@WAYS
def test_a_tap_that_dies_repeatedly(project: Project, start: Start, way: tuple[str, ...]) -> None:
    """If the tap dies repeatedly, the session ends with one reason. Finished rollouts are in journal and report, and no process is left."""
    stalling(project)
    background = start(*way, "--agentbench-concurrency=3", "scenarios/shop")
    background.in_the_middle(finished=2)

    until_it_ends(background, "pytest_agentbench.tap")

    assert 6 == background.ended(60)
    gone = "the tap is gone: `python -m pytest_agentbench.tap` died "
    assert f"infra_error: {gone}" in background.output
    assert 1 == background.output.count("the end of tap.log:\n")
    assert {"shop-0", "shop-1"} == {rollout.scenario for rollout in background.rollouts if rollout.status == "ok"}
    assert json.loads((background.directory / "run.json").read_text())["backend"]["failure"].startswith(gone)
    assert "INTERNALERROR" not in background.output
    assert not [pid for pid in background.seen if lives(pid)]


ENDS_ITS_PROCESS = """
import os
import signal

from pytest_agentbench.agents.tool_calling import ToolCalling


class Deadly(ToolCalling):
    async def run(self, scenario, llm, tools):
        answer = await super().run(scenario, llm, tools)
        if scenario.id in KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
"""


@WAYS
def test_a_pool_that_every_rollout_kills(project: Project, way: tuple[str, ...]) -> None:
    """If three rollouts in a row kill the pool and none finishes, the session ends with one reason."""
    project.suite(scenarios=8, agent={"kind": "./agent.py:Deadly"})
    project.write("scenarios/shop/agent.py", f"KILLS = {[f'shop-{number}' for number in range(1, 8)]}\n{ENDS_ITS_PROCESS}")

    result = project.run(*way, "--agentbench-concurrency=1", "scenarios/shop")

    assert 1 == result.parseoutcomes()["passed"]
    assert 1 == result.ret
    gone = "the pool is gone: `python -m pytest_agentbench.rollouts.pool` died repeatedly, with no rollout finished in between"
    assert 1 == result.stdout.str().count("the end of pool.log:\n")
    result.stdout.fnmatch_lines([f"shop?shop-[3-7]?: infra_error: {gone}*", "*agentbench: nothing more can run: the pool is gone*"])
    assert ["ok", "agent_error", "agent_error"] == [rollout.status for rollout in project.rollouts]
    assert {"pool": 9} == project.run_json["interruptions"]["deaths"]


KILL_ABOVE = "if scenario.id in KILLS:\n            os.kill(os.getppid(), signal.SIGKILL)"
ENDS_ITS_TEMPLATE = ENDS_ITS_PROCESS.replace("if scenario.id in KILLS:", KILL_ABOVE)


def killing_templates(project: Project, killers: list[str]) -> None:
    """Creates a suite with isolation whose agent kills its template process and its own process, and another suite."""
    project.suite(scenarios=8, agent={"kind": "./agent.py:Deadly"}, isolation="process", thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", f"KILLS = {killers}\n{ENDS_ITS_TEMPLATE}")
    project.suite("other", scenarios=3)


def test_a_template_that_one_rollout_kills(project: Project) -> None:
    """A rollout that kills its template runs alone the third time.

    It is then responsible and does not run again. All other rollouts are ok.
    """
    killing_templates(project, ["shop-3"])

    result = project.run("--agentbench-concurrency=4", "--agentbench-retries=0", "scenarios")

    result.assert_outcomes(passed=10, errors=1)
    why = "template of shop died 3 times while this rollout ran, the last time with nothing else in flight; run it alone with -k"
    assert [("shop-3", "infra_error", why)] == [
        (each.scenario, each.status, each.reason) for each in project.rollouts if each.status != "ok"
    ]
    assert {"template of shop": 3} == project.run_json["interruptions"]["deaths"]


def test_a_template_that_every_rollout_kills(project: Project) -> None:
    """If every rollout kills the template, the suite is given up with one reason, and the other suite is measured."""
    killing_templates(project, [f"shop-{number}" for number in range(8)])

    result = project.run("--agentbench-concurrency=4", "--agentbench-retries=0", "scenarios")

    assert 3 == result.parseoutcomes()["passed"]
    assert {"other": 3} == Counter(each.suite for each in project.rollouts if each.status == "ok")
    why = "nothing more can run: the process that runs the suite's code was ended by SIGKILL repeatedly, with no rollout finished"
    assert 1 == result.stdout.str().count(why)
    assert project.run_json["interruptions"]["deaths"]["template of shop"] >= 3


def test_the_pool_does_not_start(project: Project) -> None:
    """If the pool dies before it has answered a request, no test waits for it, and an ERROR has the end of its log."""
    project.suite(scenarios=2)
    project.write("aiohttp.py", "raise ImportError('this is not the aiohttp you are looking for')")

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*aiohttp you are looking for*"])


@WAYS
def test_a_hook_that_raises(project: Project, way: tuple[str, ...]) -> None:
    """A plugin that raises for a finished rollout makes that test an ERROR with the place. Other tests are not affected."""
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


def test_a_disk_that_is_full(project: Project) -> None:
    """If a record cannot be written, its test is an ERROR that says so. No record is incomplete, and nothing waits."""
    project.suite(scenarios=12)
    limit = 20_000  # Bytes of the largest file: a few records fit into it, but not twelve.

    done = run_on_a_small_disk(project, limit, "--agentbench-concurrency=1")

    assert 6 == done.returncode, done.stdout
    assert "infra_error: the record could not be written: [Errno 28] no space left for a record: " in done.stdout
    (journal,) = project.root.glob("reports/2*")
    assert 1 <= len([*read_journal(journal)]) < 12


def test_a_record_that_does_not_fit(tmp_path: Path) -> None:
    """A record is written completely or not at all. If it does not fit, an exception is raised, and the journal is unchanged."""
    code = f"""
import resource
from pathlib import Path
from pytest_agentbench.runs.journal import Journal
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
    """Two sessions of one project have separate run directories, and neither is disturbed by the other's files."""
    project.suite(scenarios=2)
    sessions = [start("scenarios/shop") for _ in range(2)]

    assert [0, 0] == [each.ended() for each in sessions]

    directories = [*project.root.glob("reports/2*")]
    assert [2, 2] == [len([*read_journal(directory)]) for directory in directories]


@pytest.mark.parametrize(
    "content", ["no json", "[1]", '{"embedded": [1]}', '{"embedded": {"shop[shop-0]": "long"}}', '{"embedded": {"shop[shop-0]": null}}']
)
def test_durations_that_cannot_be_used(project: Project, content: str) -> None:
    """The file of durations only helps to order rollouts. If it is invalid, it is ignored and written again."""
    project.suite(scenarios=2)
    project.write("reports/durations.json", content)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=2)
    known = json.loads((project.root / "reports/durations.json").read_text())
    assert {"shop[shop-0]", "shop[shop-1]"} == known["embedded"].keys()
