"""If a session ends while programs run as agents, no program is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest

from pytest_agentbench.lib.process import lives
from tests.project import Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = pytest.mark.slow

#: Records its process id, and ignores SIGTERM and SIGINT.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(f"{os.getpid()}.pid", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("pytest", signal.SIGINT),
        ("pytest", signal.SIGTERM),
        ("pytest", signal.SIGKILL),
        ("pytest_agentbench.rollouts.pool", signal.SIGKILL),
    ],
    ids=["ctrl-c", "sigterm", "sigkill", "pool-sigkill"],
)
def test_no_program_is_left(project: Project, start: Callable[..., Background], whom: str, number: int) -> None:
    """However a session or its pool ends, the programs of its agents are ended, even if they ignore signals."""
    project.suite(scenarios=2, agent={"kind": "command", "program": [sys.executable, "agent.py"]})
    project.write("scenarios/shop/agent.py", STUBBORN)
    background = start("scenarios/shop")

    def running() -> list[int]:
        found = [int(each.stem) for each in (project.root / "scenarios" / "shop").glob("*.pid")]
        return found if len(found) == 2 else []

    programs = wait_for(running, "two programs")
    os.kill(background.process.pid if whom == "pytest" else background.child(whom), number)

    wait_for(lambda: not any(map(lives, programs)), "the end of the programs")
    if whom != "pytest":
        # The next pool runs the rollouts again, so the session has to be ended.
        background.process.send_signal(signal.SIGINT)
    assert 0 != background.ended()
