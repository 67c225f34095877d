"""Stacks of one small service for tests of sessions, and checks that nothing of them is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.machine.ports import is_free
from pytest_agentbench.backends.stack import ownership
from pytest_agentbench.lib import file_system
from pytest_agentbench.lib.process import child_environment
from tests.project import Project
from tests.waits import wait_for

#: A suite's test that reads no score.
PASSES = "def test_it(rollout): assert rollout.status == 'ok'\n"

SERVICE = Path(__file__).parent / "backends" / "service.py"


def stack(project: Project, *options: str, name: str = "small", service: Any = None, **keys: Any) -> None:
    """Writes backends/NAME.yaml with the small server and these options. `service` and `keys` are further keys of service and stack."""
    run = [sys.executable, str(SERVICE), "--port", "{port}", *options]
    services = {"engine": {"run": run, "ready": {"http": "/health"}, "grace": 5, **(service or {})}}
    project.write(f"backends/{name}.yaml", json.dumps({"model": "tiny", "services": services, "warm_up": 1, **keys}))


@contextmanager
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder for stacks. Afterwards no process, folder, port or lock of a stack may be left."""
    here = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # The path is short because of sockets.
    stacks = here / "s"
    monkeypatch.setenv("AGENTBENCH_STACKS", str(stacks))
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(here / "l"))
    try:
        yield stacks
        assert [] == left(stacks)
        assert [] == [file.name for file in (here / "l").glob("*") if isinstance(file_system.take(file.stem, "a test"), str)]
    finally:
        for _, home in marked(stacks):
            ownership.kill_marked(home)
        shutil.rmtree(here, ignore_errors=True)


def marked(stacks: Path) -> list[tuple[int, str]]:
    return [(pid, home) for pid, home in ownership.processes() if home.startswith(str(stacks))]


def left(stacks: Path) -> list[str]:
    """Returns the processes and folders of stacks."""
    return [f"process {pid}" for pid, _ in marked(stacks)] + [str(home) for home in stacks.glob("*")]


def is_gone(url: str) -> bool:
    """Returns whether no process listens at a base URL any more."""
    return is_free(int(url.rpartition(":")[2].removesuffix("/v1")))


def agentbench(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in the project's folder."""
    command = [sys.executable, "-m", "pytest_agentbench.cli", *arguments]
    return subprocess.run(
        command,
        cwd=project.root,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def until_gone(stacks: Path, seconds: float = 30) -> None:
    """Waits until nothing of any stack is left."""
    wait_for(lambda: not left(stacks), "the end of all that stacks leave", seconds)


def daemon(stacks: Path) -> int:
    """Returns the process id of the only stack's daemon."""
    (facts,) = stacks.glob("*/stack.json")
    pid: int = json.loads(facts.read_text())["pid"]
    assert pid != os.getpid()
    return pid
