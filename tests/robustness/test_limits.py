"""Limits of a machine: a session under one says what there is too little of, and nobody waits for ever."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.project import WAYS, Project

#: As a process under `ulimit -v` or `ulimit -u` meets it: the next thread is refused.
NO_THREAD = """
import threading

start = threading.Thread.start

def refuse(thread):
    if thread.name == {name!r}:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = refuse
"""


def limited(project: Project, kind: int, *limits: int, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A session under a limit, soft and hard; fails when it does not end."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments, "scenarios/shop"],
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=lambda: resource.setrlimit(kind, (limits[0], limits[-1])),
    )


@WAYS
@pytest.mark.parametrize(
    "name", ["agentbench-pool", "agentbench-backend", "agentbench-watch-backend", "agentbench-watch-pool", "agentbench-watch-tap"]
)
def test_a_thread_that_cannot_start(project: Project, name: str, way: tuple[str, ...]) -> None:
    """Where the controller cannot do its part the tests that wait for it are told, instead of waiting for ever."""
    project.suite(scenarios=3)
    project.write("conftest.py", NO_THREAD.format(name=name))

    result = project.run(*way, "scenarios/shop")

    assert 6 == result.ret
    assert "can't start new thread" in project.run_json["backend"]["failure"]
    assert 0 == project.run_json["plan"]["finished"]


@pytest.mark.parametrize("mib", [98, 108, 118, 128, 150])
def test_too_little_memory(project: Project, mib: int) -> None:
    """Under `ulimit -v` a session ends, wherever it is that memory is missing; it is green only if all was judged."""
    project.suite(scenarios=2)

    done = limited(project, resource.RLIMIT_AS, mib << 20)

    assert (done.returncode == 0) == ("2 passed" in done.stdout)
