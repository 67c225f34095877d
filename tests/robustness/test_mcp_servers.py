"""MCP servers end with their rollout or session, however that ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib.process import lives
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = pytest.mark.slow

SERVER = '''
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from mcp.server.mcpserver import MCPServer

signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = MCPServer("shop", log_level="ERROR")

@server.tool()
def find_item(item: str, count: int = 1) -> str:
    """Finds an item in the shop, in ten minutes."""
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    for pid in (os.getpid(), other.pid):
        Path("pids", str(pid)).touch()
    time.sleep(600)
    return ""

server.run()
'''


def shop(project: Project, **keys: Any) -> Path:
    """Creates a suite of two scenarios whose tool takes ten minutes. Returns the folder in which its processes record their ids."""
    project.suite(scenarios=2, tools={"kind": "mcp", "command": ["python", "server.py"]}, thresholds={}, **keys)
    entries = [{**project.entry(f"shop-{each}"), "available_tools": []} for each in range(2)]
    project.write("scenarios/shop/data.json", json.dumps(entries))
    project.write("scenarios/shop/server.py", SERVER)
    project.backend(FIND_THEN_ANSWER)
    (pids := project.root / "scenarios/shop/pids").mkdir()
    return pids


def alive(pids: Path) -> list[int]:
    return [pid for pid in (int(file.name) for file in pids.iterdir()) if lives(pid)]


@pytest.fixture
def pids(project: Project) -> Path:
    return shop(project)


POOL = "pytest_agentbench.rollouts.pool"


@pytest.mark.parametrize(
    ("number", "victim"),
    [(signal.SIGINT, "pytest"), (signal.SIGTERM, "pytest"), (signal.SIGKILL, "pytest"), (signal.SIGKILL, POOL)],
)
def test_servers_end_with_the_session(project: Project, pids: Path, start: Callable[..., Background], number: int, victim: str) -> None:
    """If a session or its pool is ended, its servers, which ignore SIGTERM, and the processes that they have started end, too."""
    background = start("scenarios/shop", "--agentbench-concurrency=2")
    wait_for(lambda: len(alive(pids)) == 4, "two servers and what they have started", 60)
    first = alive(pids)

    os.kill(background.process.pid if victim == "pytest" else background.child(victim), number)

    wait_for(lambda: not any(map(lives, first)), "the end of the servers")
    os.kill(background.process.pid, signal.SIGKILL)
    wait_for(lambda: not alive(pids), "the end of those that were started since")


def test_a_rollout_at_its_limit(project: Project) -> None:
    """If rollouts reach their limit during a tool call, the session continues and leaves no server running."""
    pids = shop(project, timeout=3)

    project.run("scenarios/shop")

    assert ["limit", "limit"] == [rollout.status for rollout in project.rollouts]
    assert (4, []) == (len([*pids.iterdir()]), alive(pids))
