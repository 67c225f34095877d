"""What a session does not carry along: rollouts that were read, and an HTTP client where nothing calls a model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.project import WAYS, Project

KEPT = """
import os, pathlib
from pytest_agentbench.session.worker import ROLLOUT

def pytest_sessionfinish(session):
    kept = [item.name for item in getattr(session, "items", ()) if ROLLOUT in item.stash]
    pathlib.Path(__file__).with_name(f"{os.getpid()}.kept").write_text(" ".join(kept))
"""


@WAYS
def test_rollouts_are_let_go(project: Project, way: tuple[str, ...]) -> None:
    """A rollout goes with its test, whether that passed or failed: ten thousand of them would not fit into memory."""
    project.suite(scenarios=2, test="def test_fails(rollout):\n    assert rollout.scenario == 'shop-0'\n")
    project.write("conftest.py", KEPT)

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=1, failed=1)
    assert {""} == {file.read_text() for file in project.root.glob("*.kept")}


LOADED = """
import os, pathlib, sys

def pytest_sessionfinish(session):
    heavy = [name for name in ("pydantic", "pytest_agentbench.runs.run_file", "pytest_agentbench.runs.results") if name in sys.modules]
    if hasattr(session.config, "workerinput"):
        pathlib.Path(__file__).with_name(f"{os.getpid()}.loaded").write_text(" ".join(heavy))
"""


@pytest.mark.slow
def test_a_worker_knows_nothing_of_the_run(project: Project) -> None:
    """Workers read rollouts: neither the records of run.json nor what checks YAML is loaded there, whether tests pass or fail."""
    project.suite(scenarios=2, test="def test_fails(rollout):\n    assert rollout.scenario == 'shop-0'\n")
    project.write("conftest.py", LOADED)

    project.run("-n", "2", "--agentbench-workers=2", "scenarios/shop").assert_outcomes(passed=1, failed=1)

    assert ["", ""] == [file.read_text() for file in project.root.glob("*.loaded")]


NUMPY = """
import sys

def pytest_runtest_logfinish(nodeid, location):
    print(f"numpy while tests run: {'numpy' in sys.modules}.")

def pytest_unconfigure(config):
    print(f"numpy when all is over: {'numpy' in sys.modules}.")
"""


def test_numpy_is_loaded_where_a_session_ends(project: Project) -> None:
    """Numbers are computed when all rollouts are there, and only then does a session pay for numpy."""
    project.suite(scenarios=1)
    project.write("conftest.py", NUMPY)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:randomly", "scenarios/shop"]  # which itself imports numpy, if it is there

    told = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True).stdout

    assert "numpy while tests run: False." in told
    assert "numpy when all is over: True." in told


def test_looking_agents_up_loads_no_http_client() -> None:
    """The controller checks a suite's agent before anything boots; only the pool, which runs it, pays for aiohttp."""
    code = "import sys; from pytest_agentbench.agents import load_agent; load_agent('tool_calling', None); print('aiohttp' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False" == done.stdout.strip()


@pytest.mark.slow
def test_what_only_others_need(project: Project) -> None:
    """A worker looks at no process and checks no settings: it pays for neither psutil nor pydantic."""
    test = "import sys\n\ndef test_it(rollout):\n    assert not {'psutil', 'pydantic'} & sys.modules.keys()\n"
    project.suite(scenarios=1, test=test)

    project.run("-n", "2", "scenarios/shop").assert_outcomes(passed=1)
