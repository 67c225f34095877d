"""A session under a limit of the machine names the limit, and does not wait forever."""

from __future__ import annotations

import resource

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from tests.project import Project, family
from tests.robustness.processes import limited

pytestmark = pytest.mark.slow

#: Refuses to start one thread, as happens under `ulimit -v` or `ulimit -u`.
NO_THREAD = """
import threading

start = threading.Thread.start

def refuse(thread):
    if thread.name == {name!r}:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = refuse
"""


#: Threads of the controller that every measurement needs.
NEEDED = ("pool", "pool-pipe", "cpu", "sampler", "backend", "watch-backend", "watch-pool", "watch-tap")


@family("name", {each: [f"agentbench-{each}"] for each in NEEDED}, "pool-pipe")
def test_a_thread_that_cannot_start(project: Project, name: str, way: tuple[str, ...]) -> None:
    """If the controller cannot start a thread that it needs, waiting tests are errors instead of waiting forever."""
    project.suite(scenarios=3)
    project.write("conftest.py", NO_THREAD.format(name=name))

    result = project.run(*way, "scenarios/shop")

    assert 6 == result.ret
    assert "there are too few threads or processes: " in project.run_json["backend"]["failure"]
    assert 0 == project.run_json["plan"]["finished"]


@pytest.mark.parametrize(
    ("name", "status"), [("notices", pytest.ExitCode.USAGE_ERROR), ("stop", pytest.ExitCode.INTERNAL_ERROR)], ids=["notices", "stop"]
)
def test_a_thread_that_measures_nothing(project: Project, name: str, status: pytest.ExitCode) -> None:
    """If a thread that is not needed for measuring cannot start, the session ends and names the limit."""
    project.suite(scenarios=1)
    project.write("conftest.py", NO_THREAD.format(name=f"agentbench-{name}"))

    result = project.run("scenarios/shop")

    assert status == result.ret
    assert "there are too few threads or processes: " in f"{result.stdout}{result.stderr}"
    assert "INTERNALERROR" not in f"{result.stdout}{result.stderr}"


#: Leaves no memory for the stack of a thread, from the start of the tests until the session ends.
FULL = """
import pytest, resource, threading
from pytest_agentbench.lib.error_texts import address_space

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    threading.stack_size(256 << 20)  # so that no thread fits, while other allocations do
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (12 << 20), resource.RLIM_INFINITY))

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_address_space_is_used_up_during_a_session(project: Project) -> None:
    """If the next thread does not fit into `ulimit -v`, the session ends with that limit as its reason, on the terminal and in run.json."""
    project.suite(scenarios=1)
    project.write("conftest.py", FULL)

    result = project.run("scenarios/shop")

    # A thread may get the stack of one that has ended, so it is not always the same thread that is refused.
    assert result.ret in (pytest.ExitCode.USAGE_ERROR, CANNOT_MEASURE)
    said = f"{result.stdout}{result.stderr}"
    assert "MiB of address space are allowed to a process" in " ".join(said.split())
    assert "raise the limit (`ulimit -v`)" in project.run_json["backend"]["failure"]
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize("mib", [56, 98, 108, 118, 128, 150])
def test_too_little_memory(project: Project, mib: int) -> None:
    """Under `ulimit -v` a session ends, wherever memory runs out. It passes only if all tests were judged."""
    project.suite(scenarios=2)

    done = limited(project, resource.RLIMIT_AS, mib << 20)

    assert done.returncode != 0 or "2 passed" in done.stdout


def test_too_few_open_files(project: Project) -> None:
    """If the limit of open files is too low for the concurrency, an error before the start says which concurrency would work."""
    project.suite(scenarios=1)

    done = limited(project, resource.RLIMIT_NOFILE, 256, arguments=("--agentbench-concurrency=200",))

    assert 4 == done.returncode
    assert "200 rollouts in flight need up to 864 open files in a process, and 256 are allowed" in done.stderr
    assert "or ask for 48 with --agentbench-concurrency" in done.stderr
    assert [] == [*project.root.glob("reports/2*")]


def test_a_soft_limit_is_raised(project: Project) -> None:
    """If only the soft limit of open files is low, processes raise it, so that a hundred rollouts can be in flight."""
    project.backend([{"text": "This takes its time.", "stall": {"after": 1, "ms": 3000}}])
    project.suite(scenarios=100, thresholds={"tsq": 0.0})

    done = limited(project, resource.RLIMIT_NOFILE, 100, 4096, arguments=("--agentbench-concurrency=100", "-q"))

    assert 0 == done.returncode, done.stdout[-3000:]
