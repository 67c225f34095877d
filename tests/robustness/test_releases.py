"""Rollouts are released at the router even if the process that controls them is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.labelled_router import routing
from tests.project import TWO_WORKERS, Project
from tests.robustness.processes import Background, command_of, descendants
from tests.waits import wait_for

pytestmark = pytest.mark.slow

WAITING = """
class Waiting:
    async def run(self, scenario, llm, tools):
        await llm.chat(scenario.messages)
        await llm.chat([{"role": "user", "content": "forever"}])
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_controller_is_ended(project: Project, start: Callable[..., Background], signum: int) -> None:
    """However the controller ends, all rollouts in flight are released."""
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

    assert (3, []) == (len(known), router.early)
    assert known == {id for id, was_known in router.releases if was_known}


def test_a_worker_is_killed(project: Project, start: Callable[..., Background]) -> None:
    """A worker runs no rollouts: if it dies, nothing is released. At the end of the session each rollout is released once."""
    with routing() as router:
        project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
        project.suite(scenarios=3, agent={"kind": "./agent.py:Waiting"})
        project.write("scenarios/shop/agent.py", WAITING)
        background = start(*TWO_WORKERS, "--agentbench-concurrency=3", "scenarios/shop", "--agentbench-backend=router")
        wait_for(lambda: len(router.chats) == 6 or background.process.poll() is not None, "the calls that wait")
        known = {body["program_id"] for _, body in router.chats}
        worker = next(pid for pid in descendants(background.process.pid) if "exec(eval(" in command_of(pid))
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: "node down" in background.output or background.process.poll() is not None, "xdist to say so")
        before = [*router.releases]
        os.kill(background.process.pid, signal.SIGTERM)
        background.ended(60)
        wait_for(lambda: not router.programs, "the releases")

    assert (3, [], []) == (len(known), before, router.early)
    assert sorted((id, True) for id in known) == sorted(router.releases)
