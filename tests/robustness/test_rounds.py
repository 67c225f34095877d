"""Sessions with trial rounds that are interrupted during a round that no test reads."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from pytest_agentbench.lib.process import lives
from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.project import WAYS, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = pytest.mark.slow

Start = Callable[..., Background]

#: Only the third run of a scenario takes long. From the fourth on, all are quick again.
AGENT = """
import asyncio
from pathlib import Path

async def run(scenario):
    times = len([*Path(__file__).parent.glob(f"{scenario.id}.*")]) + 1
    Path(__file__).with_name(f"{scenario.id}.{times}").touch()
    if times == 3:
        await asyncio.sleep(600)
"""
WANTED = ("--agentbench-trials=auto", "--agentbench-gate=pass^3 >= 0.5", "scenarios/shop")


@pytest.fixture
def waiting(project: Project, start: Start) -> Start:
    """A session whose tests have ended, in its third trial round."""

    def run(*arguments: str) -> Background:
        folder = project.suite(scenarios=4, agent={"kind": "./agent.py:run"}, thresholds={"tsq": 0.0}).parent
        project.write("scenarios/shop/agent.py", AGENT)
        background = start(*arguments, *WANTED)
        wait_for(lambda: len([*folder.glob("shop-?.3")]) == 4, "the third round")
        return background

    return run


def run_of(background: Background) -> Json:
    run: Json = json.loads((background.directory / "run.json").read_text())
    return run


@WAYS
def test_ctrl_c_in_a_later_round(project: Project, waiting: Start, way: tuple[str, ...]) -> None:
    """After Ctrl-C the session ends at once with the result of the last complete round. If it is resumed, the remaining rounds run."""
    background = waiting("--agentbench-concurrency=4", *way)
    background.in_the_middle()

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert not [pid for pid in background.seen if lives(pid)]
    run = run_of(background)
    assert {1: 4, 2: 4} == Counter(rollout.trial for rollout in background.rollouts)
    assert (2, False, 0) == (run["rounds"]["ran"], run["rounds"]["stands"], run["rounds"]["saved"])
    assert {"rollouts": 12, "finished": 8, "not_run": 4} == run["plan"]
    assert [(5, 2, False)] == [
        (rounds.most, rounds.ran, rounds.stands) for _, rounds in said(report_of(background.directory, Level.SUMMARY), gate_phrases.gate)
    ]

    assert 0 == project.run("--agentbench-resume", *way, *WANTED).ret

    assert dict.fromkeys(range(1, 6), 4) == Counter(rollout.trial for rollout in project.rollouts)
    assert [2, 3, 4, 5] == [look["round"] for look in project.run_json["rounds"]["looks"]]


def test_a_pool_that_dies_in_a_later_round(waiting: Start) -> None:
    """If the pool dies in a later round, the next pool runs the rest of the round and the following ones."""
    background = waiting()

    os.kill(background.child("pytest_agentbench.rollouts.pool"), signal.SIGKILL)

    assert 0 == background.ended(60), background.output
    assert dict.fromkeys(range(1, 6), 4) == Counter(rollout.trial for rollout in background.rollouts)
    run = run_of(background)
    assert {"pool": 1} == run["interruptions"]["deaths"]
    assert {"rollouts": 20, "finished": 20, "not_run": 0} == run["plan"]
    assert 5 == run["rounds"]["ran"]
