"""A real NVIDIA Dynamo, or the session, is killed in mid-run: the cause is named, what was measured is kept, nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.serving.environments import home_of, is_whole
from pytest_agentbench.serving.marks import processes
from tests.real.booting import ROOT

pytestmark = pytest.mark.timeout(240)

WAIT = 120.0  # seconds for anything
MEASURED = 4  # rollouts before something is killed

WORKER, FRONTEND = "dynamo_embedded_worker.py", "dynamo.frontend"


class Session:
    """A session with forty customers on Dynamo, each of whom takes some seconds."""

    def __init__(self, folder: Path, stacks: Path, options: tuple[str, ...]) -> None:
        self.reports, self.stacks, self.output = folder / "reports", stacks, folder / "output"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "scenarios/banking",
            "-q",
            "-p",
            "no:cacheprovider",
            "--agentbench-backend=dynamo-embedded",
        ]
        command += [f"--agentbench-reports={self.reports}", "--agentbench-limit=40", "--agentbench-concurrency=4", "--agentbench-retries=2"]
        command += ["--agentbench-set", "backend.settings.ttft_ms=500", *options]
        scrubbed = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**scrubbed, "AGENTBENCH_STACKS": str(stacks)}, stdout=output, stderr=output, start_new_session=True
            )

    def measured(self) -> list[Json]:
        """The rollouts that are saved so far."""
        texts = [file.read_text() for file in self.reports.glob("2*/rollouts.jsonl")]
        return [json.loads(line) for line in "".join(texts).splitlines() if line.endswith("}")]

    def log(self) -> str:
        """What the stack's guardian says it did."""
        return next(self.reports.glob("2*/backend/guardian.log")).read_text()

    def pids(self, program: str = "") -> list[int]:
        """Processes of this session's stack that run this."""
        return [pid for pid, home in processes() if home.startswith(str(self.stacks)) and program in command_of(pid)]

    def kill(self, program: str) -> None:
        """SIGKILL to one process that runs this, when some rollouts are saved."""
        self.until(lambda: len(self.measured()) >= MEASURED)
        os.kill(self.pids(program)[0], signal.SIGKILL)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT
        while not holds():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def ended(self) -> int:
        """The exit status of the session, after which nothing may be left of its stack."""
        status = self.process.wait(WAIT)
        self.until(lambda: not self.pids() and not list(self.stacks.iterdir()))
        return status


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Starts the session, with further options."""
    if not is_whole(home_of("dynamo")):
        pytest.skip("NOT TESTED: the environment 'dynamo' is not there: agentbench env create dynamo")
    stacks = Path(tempfile.mkdtemp(prefix="stacks-"))  # short: sockets are in it
    sessions: list[Session] = []

    def session(*options: str) -> Session:
        sessions.append(Session(tmp_path, stacks, options))
        return sessions[-1]

    yield session
    for each in sessions:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(WAIT)
    shutil.rmtree(stacks, ignore_errors=True)


@pytest.mark.parametrize("program", [WORKER, FRONTEND])
def test_a_service_is_killed(start: Callable[..., Session], program: str) -> None:
    """What is not measured yet is an ERROR that names the service and its end; what was measured is saved."""
    session = start()
    session.kill(program)
    status = session.ended()

    said = session.said()
    name = {WORKER: "worker-", FRONTEND: "frontend"}[program]
    assert 1 == status
    assert f"{name}" in said
    assert "exit code -9" in said
    assert MEASURED <= sum(rollout["status"] == "ok" for rollout in session.measured()) < 40
    assert " errors" in said.splitlines()[-1]


def test_a_worker_is_started_again(start: Callable[..., Session]) -> None:
    """With `restart: 1` the session goes on; only what Dynamo sends to the dead worker until it notices, some ten seconds, is lost."""
    session = start("--agentbench-set", "backend.services.worker.restart=1", "--agentbench-set", "backend.settings.router_mode=round-robin")
    session.kill(WORKER)
    session.ended()

    statuses = Counter(rollout["status"] for rollout in session.measured())
    assert 40 == statuses["ok"] + statuses["infra_error"]
    assert 20 < statuses["ok"]
    assert "starting it again, for the 1. time of 1" in session.log()


def test_the_controller_is_killed(start: Callable[..., Session]) -> None:
    """The guardian takes the stack down, and the rollouts are there."""
    session = start()
    session.until(lambda: len(session.measured()) >= MEASURED)
    session.process.kill()
    session.ended()

    assert MEASURED <= len(session.measured()) < 40


def test_a_session_is_told_to_end(start: Callable[..., Session]) -> None:
    """SIGTERM tears the stack down as Ctrl-C does."""
    session = start()
    session.until(lambda: len(session.measured()) >= MEASURED)
    session.process.terminate()
    status = session.ended()

    assert 2 == status
