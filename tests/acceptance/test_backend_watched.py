"""`agentbench backend status --watch` and `agentbench backend logs --follow` as commands beside a stack that is booted without a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import child_environment
from tests.project import Project
from tests.small_stacks import agentbench, own_folder, stack
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def running(project: Project, output: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a command that runs in the project's folder and writes to a file. It is ended afterwards."""
    command = [sys.executable, "-m", "pytest_agentbench.cli", *arguments]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=project.root, env=child_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_stack_that_is_watched(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands print what changes, and end with 130 and one sentence at Ctrl-C. `logs --follow` ends with 0 when the stack stops."""
    states, logs, interrupted = (tmp_path / f"{name}.txt" for name in ("states", "logs", "interrupted"))
    stack(project)
    with own_folder(monkeypatch), running(project, states, "backend", "status", "--watch") as status:
        wait_for(lambda: "no stack is running" in states.read_text(), "the first list")
        up = agentbench(project, "backend", "up", "small", "--for", "10m")
        assert 0 == up.returncode, up.stderr
        wait_for(lambda: "ready" in states.read_text(), "the stack in the list")

        with running(project, logs, "backend", "logs", "small", "--follow") as followed:
            with running(project, interrupted, "backend", "logs", "small", "engine", "--follow") as other:
                wait_for(lambda: "engine.log" in interrupted.read_text() and "engine.log" in logs.read_text(), "the known lines")
                (engine_log,) = project.root.glob("reports/backends/small/*/engine.log")
                with engine_log.open("a") as log:
                    log.write("a line that is new\n")
                wait_for(lambda: "a line that is new" in logs.read_text() and "is new" in interrupted.read_text(), "the new line")
                other.send_signal(signal.SIGINT)
                assert 130 == other.wait(60)
            assert 0 == agentbench(project, "backend", "down", "small").returncode
            assert 0 == followed.wait(60)
        wait_for(lambda: states.read_text().rstrip().endswith("no stack is running"), "the list without the stack")
        status.send_signal(signal.SIGINT)
        assert 130 == status.wait(60)

    for output in (states, interrupted):
        assert "agentbench: interrupted" == output.read_text().splitlines()[-1]
        assert "Traceback" not in output.read_text()
