"""Agents that print without end: the beginning and end of the log are kept, and memory and disk are not filled."""

from __future__ import annotations

import re
import sys

import pytest

from pytest_agentbench.lib.standard_streams import LOG_LIMIT
from pytest_agentbench.records import Json
from tests.project import Project

MEGABYTES = 300
LOUD = f"""
import os, stat, sys

def talk():
    print("the beginning")
    for _ in range({MEGABYTES}):
        print("x" * (1 << 20))
    print("the end")
    return "a pipe" if stat.S_ISFIFO(os.fstat(1).st_mode) else ""

async def run():
    return talk()

async def score(scenario, rollout):
    talk()
    return 1.0

if __name__ == "__main__":
    sys.stdout = sys.stderr
    talk()
"""

KINDS: dict[str, tuple[Json, str]] = {
    "pool": ({"kind": "./agent.py:run"}, "none"),
    "process": ({"kind": "./agent.py:run"}, "process"),
    "command": ({"kind": "command", "program": [sys.executable, "agent.py"]}, "none"),
}


@pytest.mark.parametrize("kind", ["pool", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("process", "command"))])
def test_an_agent_that_prints_without_an_end(project: Project, kind: str) -> None:
    """If an agent prints too much, a line in its log says how much was left out between beginning and end.

    The pool's memory stays small.
    """
    agent, isolation = KINDS[kind]
    project.suite(scenarios=1, agent=agent, isolation=isolation, thresholds={}, test="def test_it(rollout): pass\n")
    project.write("scenarios/shop/agent.py", LOUD)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    (rollout,) = project.rollouts
    assert ("ok", {"process": "a pipe"}.get(kind, "")) == (rollout.status, rollout.answer)
    assert rollout.log.startswith("the beginning\nxxx")
    assert rollout.log.endswith("xxx\nthe end\n")
    (left_out,) = re.findall(r"\n\[([0-9,]+) (?:characters|bytes) left out\]\n", rollout.log)
    assert MEGABYTES << 20 < int(left_out.replace(",", "")) + len(rollout.log) < MEGABYTES + 1 << 20
    assert len(rollout.log) < LOG_LIMIT + 50
    assert project.run_json["processes"]["pool"]["peak_mib"] < MEGABYTES


@pytest.mark.slow
def test_a_scorer_that_prints_without_an_end(project: Project) -> None:
    """The output of scorers is in the same log and has the same limit."""
    project.suite(scenarios=1, scorers=["./agent.py:score", "tsq"], thresholds={}, test="def test_it(rollout): pass\n")
    project.write("scenarios/shop/agent.py", LOUD)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    assert len(project.rollouts[0].log) < LOG_LIMIT + 50
    assert project.run_json["processes"]["pool"]["peak_mib"] < MEGABYTES
