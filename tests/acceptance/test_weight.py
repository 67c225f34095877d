"""Memory and imports of a session: rollouts are released, and modules are only loaded where they are needed."""

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
def test_rollouts_are_released(project: Project, way: tuple[str, ...]) -> None:
    """A rollout is released after its test, whether that passed or failed, because ten thousand of them would not fit into memory."""
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
def test_a_worker_does_not_load_run_modules(project: Project) -> None:
    """Workers load neither the records of run.json nor the modules that check YAML, whether tests pass or fail."""
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
    """Statistics are computed at the end, and only then does a session load numpy."""
    project.suite(scenarios=1)
    project.write("conftest.py", NUMPY)
    # The plugin randomly would import numpy itself if it is installed.
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:randomly", "scenarios/shop"]

    told = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True).stdout

    assert "numpy while tests run: False." in told
    assert "numpy when all is over: True." in told


def test_looking_agents_up_loads_no_http_client() -> None:
    """The controller checks a suite's agent without loading aiohttp, which only the pool needs."""
    code = "import sys; from pytest_agentbench.agents import load_agent; load_agent('tool_calling', None); print('aiohttp' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False" == done.stdout.strip()


@pytest.mark.slow
def test_workers_do_not_load_psutil_and_pydantic(project: Project) -> None:
    """A worker does not watch processes or check settings, so it loads neither psutil nor pydantic."""
    test = "import sys\n\ndef test_it(rollout):\n    assert not {'psutil', 'pydantic'} & sys.modules.keys()\n"
    project.suite(scenarios=1, test=test)

    project.run("-n", "2", "scenarios/shop").assert_outcomes(passed=1)
