"""If pool, tap or engine die, they are started again: the session continues, and every rollout is measured once."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from pytest_agentbench.lib.process import lives
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.labelled_router import routing
from tests.project import FIND_THEN_ANSWER, TWO_WORKERS, WAYS, Project
from tests.robustness.processes import SEEDS, Background
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Start = Callable[..., Background]

PARTS = ("pool", "tap", "engine")
MODULES = {"pool": "pytest_agentbench.rollouts.pool", "tap": "pytest_agentbench.tap", "engine": "pytest_agentbench.engine"}


def shop(project: Project, scenarios: int, ttft_ms: float = 100) -> None:
    """Creates a suite whose rollouts all pass, on an engine with this delay."""
    project.suite(scenarios=scenarios)
    project.backend([{"ttft_ms": ttft_ms, **rule} for rule in FIND_THEN_ANSWER])


def kill(background: Background, part: str) -> None:
    """Kills a part of the session with SIGKILL, and waits until it has ended."""
    pid = wait_for(lambda: background.children(MODULES[part]), f"the {part}")[0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not lives(pid), f"the end of the {part}")


@WAYS
@pytest.mark.parametrize("part", PARTS)
def test_one_death(project: Project, start: Start, part: str, way: tuple[str, ...]) -> None:
    """If one part dies, all tests pass, every rollout has one record, the report counts the interruptions, and no retry is used."""
    shop(project, 16)
    background = start(*way, "--agentbench-concurrency=4", "--agentbench-retries=0", "scenarios/shop")
    background.in_the_middle(finished=3)

    kill(background, part)

    assert 0 == background.ended(90), background.output
    assert "16 passed" in background.output
    assert dict.fromkeys((f"shop-{number}" for number in range(16)), 1) == Counter(each.scenario for each in background.rollouts)
    run = json.loads((background.directory / "run.json").read_text())
    assert {part: 1} == run["interruptions"]["deaths"]
    assert run["interruptions"]["attempts"] == sum(len(each.earlier_attempts) for each in background.rollouts)
    told = said(report_of(background.directory, Level.FIRST_PAGE), phrases.interruptions)
    assert [{part: 1}] == [each.interruptions.deaths for (each,) in told]
    assert not [pid for pid in background.seen if lives(pid)]


PACED = """
import asyncio
from pathlib import Path

from pytest_agentbench.agents.tool_calling import ToolCalling

BEGIN = Path(__file__).with_name("begin")


class Paced(ToolCalling):
    async def run(self, scenario, llm, tools):
        while int(scenario.id.rpartition("-")[2]) >= int(BEGIN.read_text()):
            await asyncio.sleep(0.02)
        answer = await super().run(scenario, llm, tools)
        await asyncio.sleep(0.2)
        return answer
"""


def paced(project: Project, scenarios: int) -> None:
    """Creates a suite whose rollouts begin only when `kill_at_any_moments` lets them, so that no session ends before its last kill."""
    project.suite(scenarios=scenarios, agent={"kind": "./agent.py:Paced"})
    project.write("scenarios/shop/agent.py", PACED)
    project.write("scenarios/shop/begin", "0")


def kill_at_any_moments(background: Background, parts: list[str], moments: random.Random, apart: int) -> None:
    """Kills these parts one after the other, each after some more rollouts and a random pause."""
    for part in parts:
        recorded = len(background.rollouts) + apart + moments.randint(0, apart // 2)  # a kill takes 2.5 * apart rollouts at most
        _let_begin(background, recorded + apart)
        background.has_recorded(recorded)
        time.sleep(moments.uniform(0, 0.2))  # no event: the moment is to be any
        assert background.process.poll() is None, background.output
        kill(background, part)
    _let_begin(background, sys.maxsize)


def _let_begin(background: Background, scenarios: int) -> None:
    """Lets this number of rollouts of a paced suite begin."""
    draft = background.root / "scenarios/shop/draft"
    draft.write_text(str(scenarios))
    draft.replace(draft.with_name("begin"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[::4])
def test_fifteen_deaths(project: Project, start: Start, seed: int) -> None:
    """If pool, tap and engine die five times each, 340 rollouts are measured once each, everything is counted, and no process is left."""
    moments = random.Random(seed)
    paced(project, 340)
    project.backend([{"ttft_ms": 150, **rule} for rule in FIND_THEN_ANSWER])
    background = start(*TWO_WORKERS, "--agentbench-concurrency=8", "--agentbench-retries=0", "scenarios/shop")
    parts = [*PARTS] * 5
    moments.shuffle(parts)

    # The distance is one more than the rollouts in flight, so each killed process has worked since the last kill.
    kill_at_any_moments(background, parts, moments, 9)

    assert 0 == background.ended(120), background.output
    assert "340 passed" in background.output
    lines = [json.loads(line) for line in (background.directory / "rollouts.jsonl").read_bytes().splitlines()]
    assert dict.fromkeys((f"shop-{number}" for number in range(340)), 1) == Counter(line["scenario"] for line in lines)
    assert {"ok"} == {line["status"] for line in lines}
    run = json.loads((background.directory / "run.json").read_text())
    assert dict.fromkeys(PARTS, 5) == run["interruptions"]["deaths"]
    assert run["interruptions"]["attempts"] == sum(len(line["earlier_attempts"]) for line in lines) > 0
    for level in (Level.FIRST_PAGE, Level.VERBOSE):
        told = said(report_of(background.directory, level), phrases.interruptions)
        assert [dict.fromkeys(PARTS, 5)] == [each.interruptions.deaths for (each,) in told]
    assert {"rollouts": 340, "finished": 340, "not_run": 0} == run["plan"]
    assert not [pid for pid in background.seen if lives(pid)]


@WAYS
def test_programs_at_a_router_are_released(project: Project, start: Start, way: tuple[str, ...]) -> None:
    """At the end of a session, an external router has no program of it left, however often pool and tap died."""
    with routing() as router:
        router.lists = False  # Only the session itself knows which programs are left.
        project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
        paced(project, 40)
        background = start(*way, "--agentbench-concurrency=6", "--agentbench-backend=router", "scenarios/shop")

        kill_at_any_moments(background, ["pool", "tap", "pool", "pool"], random.Random(3), 3)

        assert 0 == background.ended(90), background.output
        assert not router.programs
        known = {id for id, was_known in router.releases if was_known}

    assert {body["program_id"] for _, body in router.chats} == known
    labels = json.loads((background.directory / "run.json").read_text())["labels"]
    assert 0 == labels["left"]
    # The answer to a release may be lost if its pool dies.
    assert 0 <= len(known) - labels["announced"] <= 3 * 6


def test_deaths_in_an_ab_session(project: Project, start: Start) -> None:
    """Blocks continue after pool, tap or an arm's engine died.

    Both arms have all their rollouts, and none overlaps with one of the other arm.
    """
    paced(project, 24)
    for name in ("one", "two"):
        project.backend([{"ttft_ms": 100, **rule} for rule in FIND_THEN_ANSWER], name=name)
    background = start("--agentbench-ab=one,two", "--agentbench-concurrency=3", "scenarios/shop")

    kill_at_any_moments(background, ["pool", "tap", "engine", "pool"], random.Random(7), 4)

    assert 0 == background.ended(90), background.output
    assert "48 passed" in background.output
    rollouts = background.rollouts
    assert {"one": 24, "two": 24} == Counter(each.variant for each in rollouts)
    spans = {arm: [(each.started_ns, each.ended_ns) for each in rollouts if each.variant == arm] for arm in ("one", "two")}
    assert not any(a[0] < b[1] and b[0] < a[1] for a in spans["one"] for b in spans["two"])
    deaths = json.loads((background.directory / "run.json").read_text())["interruptions"]["deaths"]
    assert (2, 1, 1) == (deaths.pop("pool"), deaths.pop("tap"), sum(deaths.values()))


BY_HAND = """
import psutil

async def test_by_hand(llm):
    await llm.chat([{"role": "user", "content": "Hello"}])
    (pool,) = [child for child in psutil.Process().children() if "pytest_agentbench.rollouts.pool" in child.cmdline()]
    pool.kill()
    await llm.chat([{"role": "user", "content": "Hello again"}])
"""


def test_manual_calls_after_the_pool_died(project: Project) -> None:
    """If the pool dies, a test with `llm` can keep calling the model at its address. All calls are in its record once."""
    project.suite(scenarios=1, test=BY_HAND)

    result = project.run("-o", "asyncio_mode=auto", "scenarios/shop")

    result.assert_outcomes(passed=1)
    assert [("adhoc", 2)] == [(rollout.kind, len(rollout.calls)) for rollout in project.rollouts]
    assert {"deaths": {"pool": 1}, "attempts": 0} == project.run_json["interruptions"]


BLOCKS = """
import time

from pytest_agentbench.agents.tool_calling import ToolCalling


class Blocking(ToolCalling):
    async def run(self, scenario, llm, tools):
        answer = await super().run(scenario, llm, tools)
        if scenario.id == "shop-2":
            time.sleep(3600)
        return answer
"""


@WAYS
def test_a_pool_that_names_the_responsible_rollout(project: Project, way: tuple[str, ...]) -> None:
    """The rollout that the pool names ends as agent_error with that reason and its calls. Other rollouts in flight run again."""
    project.suite(scenarios=8, agent={"kind": "./agent.py:Blocking"}, timeout=4)
    project.write("scenarios/shop/agent.py", BLOCKS)

    result = project.run(*way, "--agentbench-concurrency=4", "scenarios/shop")

    result.assert_outcomes(passed=7, failed=1)
    (blocking,) = [rollout for rollout in project.rollouts if rollout.scenario == "shop-2"]
    assert blocking.reason.startswith("the agent blocked the event loop until its 4 s were over: agent.py:11: time.sleep(3600); ")
    assert ("agent_error", 2) == (blocking.status, len(blocking.calls))
    assert ["ok"] * 7 == [rollout.status for rollout in project.rollouts if rollout != blocking]
    assert {"pool": 1} == project.run_json["interruptions"]["deaths"]


@WAYS
def test_no_restart_after_ctrl_c(project: Project, start: Start, way: tuple[str, ...]) -> None:
    """After Ctrl-C, a process that dies is not started again."""
    shop(project, 16, ttft_ms=300)
    background = start(*way, "--agentbench-concurrency=4", "scenarios/shop")
    background.in_the_middle(finished=1)

    os.kill(background.process.pid, signal.SIGINT)
    for pid in background.children("pytest_agentbench.rollouts.pool"):
        os.kill(pid, signal.SIGKILL)

    assert 2 == background.ended(60), background.output
    assert not [pid for pid in background.seen if lives(pid)]
    assert " pytest --agentbench-resume=" in background.output


DEADLY = """
import os
import signal

from pytest_agentbench.agents.tool_calling import ToolCalling


class Deadly(ToolCalling):
    async def run(self, scenario, llm, tools):
        answer = await super().run(scenario, llm, tools)
        if scenario.id == "shop-5":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
"""


@WAYS
def test_a_rollout_that_kills_the_pool(project: Project, way: tuple[str, ...]) -> None:
    """A rollout that kills the pool is identified, and ends as agent_error with the signal, its attempts and their calls.

    All others are measured.
    """
    project.suite(scenarios=16, agent={"kind": "./agent.py:Deadly"})
    project.write("scenarios/shop/agent.py", DEADLY)

    result = project.run(*way, "--agentbench-concurrency=4", "scenarios/shop")

    result.assert_outcomes(passed=15, failed=1)
    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    assert 16 == len(rollouts) == len(project.rollouts)
    deadly = rollouts.pop("shop-5")
    assert {"ok"} == {rollout.status for rollout in rollouts.values()}
    why = "the rollout ended the pool process (signal 9): the pool died 3 times while it ran, the last time with nothing else in flight; "
    assert ("agent_error", True) == (deadly.status, deadly.reason.startswith(why))
    assert ["interrupted: the pool died (exit code -9)"] * 2 == [attempt.reason for attempt in deadly.earlier_attempts]
    assert [2, 2, 2] == [len(attempt.calls) for attempt in deadly.attempts]
    assert {"pool": 3} == project.run_json["interruptions"]["deaths"]
    assert 1 == project.run_json["exit_status"]
