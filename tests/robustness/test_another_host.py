"""Pool and tap may run elsewhere: in another working directory, with another HOME, and with another clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json
from tests.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Rollouts run one after the other, so that the engine's prefix cache gives each call the same number of tokens.
ONE_BY_ONE = ("--agentbench-concurrency=1", "scenarios/shop")
AHEAD = 1_000_000  # Seconds by which the clock of the other host is ahead.

#: Starts pool and tap as if they were on another host, and all other processes as usual.
ELSEWHERE = f"""#!/bin/sh
case "$2" in
pytest_agentbench.rollouts.pool | pytest_agentbench.tap)
    cd '{{place}}' || exit 1
    HOME='{{place}}' exec unshare --time --monotonic {AHEAD} --boottime {AHEAD} --fork --kill-child '{sys.executable}' "$@" ;;
*)
    exec '{sys.executable}' "$@" ;;
esac
"""

CONFTEST = """
import sys

sys.executable = {wrapper!r}
"""

AGENT = """
import os
from pathlib import Path

from pytest_agentbench.agents.tool_calling import ToolCalling

GREETING = Path(__file__).with_name("greeting.txt").read_text()


class Greeting(ToolCalling):
    async def run(self, scenario, llm, tools):
        print(GREETING)
        Path.home().joinpath("was-here").touch()
        Path("worked-here").touch()
        return await super().run(scenario, llm, tools)
"""


def without_times(value: Any) -> Any:
    """Returns a record without times and random values."""
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if not name.endswith("_ns") and name not in RANDOM}
    return [*map(without_times, value)] if isinstance(value, list) else value


#: Fields that differ between any two runs: times, checksums of them, and ids that the engine draws.
RANDOM = frozenset({"crc", "started_at", "chunks", "response_id", "reply"})


def records(project: Project) -> tuple[dict[str, Json], list[int]]:
    """Returns the record of each scenario without times, and the start times of the rollouts."""
    lines = [json.loads(line) for line in (project.directory / "rollouts.jsonl").read_bytes().splitlines()]
    return {line["scenario"]: without_times(line) for line in lines}, [line["started_ns"] for line in lines]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder that is the home of processes on another host. Skips if the kernel cannot give processes a clock of their own."""
    done = subprocess.run(["unshare", "--time", "--monotonic", "1", "--fork", "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT RUN: processes cannot get a clock of their own here: {done.stderr.strip()}")
    place = tmp_path / "elsewhere"
    place.mkdir()
    return place


def test_a_pool_on_another_host(project: Project, elsewhere: Path) -> None:
    """Except for times, the records do not depend on whether pool and controller share working directory, HOME and clock."""
    project.suite(scenarios=6, agent={"kind": "./agent.py:Greeting"}, expected=("find_item", "order_item"), thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", AGENT)
    project.write("scenarios/shop/greeting.txt", "Good morning.")
    project.run(*ONE_BY_ONE).assert_outcomes(passed=6)
    here, began = records(project)
    shutil.rmtree(project.root / "reports")
    wrapper = project.write("python-elsewhere", ELSEWHERE.format(place=elsewhere))
    wrapper.chmod(0o755)
    project.write("conftest.py", CONFTEST.format(wrapper=str(wrapper)))

    project.run(*ONE_BY_ONE).assert_outcomes(passed=6)

    there, began_there = records(project)
    assert {"was-here", "worked-here"} <= {path.name for path in elsewhere.iterdir()}
    assert min(began_there) - max(began) > AHEAD * 1_000_000_000
    assert here.keys() == there.keys()
    for scenario, record in here.items():
        assert record == there[scenario]
