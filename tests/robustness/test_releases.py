"""What a stack is told of rollouts that nobody is left to end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.project import Project
from tests.robustness.processes import Background, wait_for
from tests.router import routing

pytestmark = pytest.mark.slow

WAITING = """
class Waiting:
    async def run(self, scenario, llm, tools):
        await llm.chat(scenario.messages)
        await llm.chat([{"role": "user", "content": "forever"}])
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_controller_is_ended(project: Project, start: Callable[..., Background], signum: int) -> None:
    """However the controller goes, all rollouts in flight are released."""
    with routing() as router:
        project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
        project.suite(scenarios=3, agent={"kind": "./agent.py:Waiting"})
        project.write("scenarios/shop/agent.py", WAITING)
        background = start("scenarios/shop", "--agentbench-backend=router")
        wait_for(lambda: len(router.chats) == 6 or background.process.poll() is not None, "the calls that wait")
        known = set(router.programs)
        os.kill(background.process.pid, signum)
        background.ended()
        wait_for(lambda: not router.programs, "the releases")

    assert 3 == len(known)
    assert known == {id for id, was_known in router.releases if was_known}
