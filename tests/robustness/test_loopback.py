"""Addresses on which the processes of a session listen."""

from __future__ import annotations

import pytest

from tests.project import WAYS, Project

pytestmark = pytest.mark.slow

#: Inspects the controller and all of its descendants during the session.
LOOKS = """
import os
import psutil

def test_it(rollout):
    top = psutil.Process(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    family = {top.pid, *(child.pid for child in top.children(recursive=True))}
    seen = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.pid in family]
    assert len(seen) >= 4, seen  # the pool, the tap's two, the engine
    assert {"127.0.0.1"} == {each.laddr.ip for each in seen}
"""


@WAYS
def test_processes_listen_only_on_loopback(project: Project, way: tuple[str, ...]) -> None:
    """Pool, tap and embedded engine listen only on 127.0.0.1, with and without workers."""
    project.suite(scenarios=1, test=LOOKS)

    project.run(*way, "scenarios/shop").assert_outcomes(passed=1)
