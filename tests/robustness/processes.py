"""Real processes for tests of failure: a pytest in the background, its children, and waiting for events."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

import psutil

from pytest_agentbench.lib.process import lives
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.journal import read_journal
from tests.project import PYTEST, Project
from tests.waits import wait_for

#: Seeds of the moments at which processes are killed. `KILL_SEEDS=100 .venv/bin/pytest tests/robustness` tries more of them, for example at
#: night.
SEEDS = range(1, 1 + int(os.environ.get("KILL_SEEDS", "4")))

SERVICES = ("pytest_agentbench.engine", "pytest_agentbench.tap", "pytest_agentbench.rollouts.pool")


def command_of(pid: int) -> str:
    """Returns the command line of a process, or "" if it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def descendants(pid: int) -> list[int]:
    """Returns the ids of a process's children, their children, and so on."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Background:
    """A pytest in the background whose processes a test can kill while it runs."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self.root = project.root
        self.log = project.root / "pytest-output.txt"
        with self.log.open("w") as output:
            self.process: subprocess.Popen[bytes] = project.pytester.popen(
                [*PYTEST, *arguments],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.seen: set[int] = set()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def directory(self) -> Path:
        """The run directory, finished or not."""
        (journal,) = [*self.root.glob("reports/2*/rollouts.jsonl")]
        return journal.parent

    @property
    def rollouts(self) -> list[Rollout]:
        return [*read_journal(self.directory)] if [*self.root.glob("reports/2*/rollouts.jsonl")] else []

    def in_the_middle(self, finished: int = 1) -> list[int]:
        """Waits until some rollouts are in the journal. Returns the ids of all processes of the session at that time."""
        wait_for(lambda: len(self.rollouts) >= finished or self.process.poll() is not None, "the first rollouts", 60)
        assert self.process.poll() is None, self.output
        pids = descendants(self.process.pid)
        self.seen.update(pids)
        return pids

    def has_recorded(self, count: int) -> None:
        """Waits until this number of rollouts is in the journal, or the session has ended."""
        wait_for(lambda: len(self.rollouts) >= count or self.process.poll() is not None, f"{count} rollouts", 60)

    def child(self, module: str) -> int:
        """Returns the process id of `python -m <module>`."""
        (pid,) = self.children(module)
        return pid

    def children(self, module: str) -> list[int]:
        """Returns the process ids of all living `python -m <module>`."""
        pids = [pid for pid in descendants(self.process.pid) if module in command_of(pid) and lives(pid)]
        self.seen.update(pids)
        return pids

    def ended(self, seconds: float = 30) -> int:
        """Waits until the session has ended. Returns its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pytest did not end within {seconds:g} s; its output:\n{self.output}") from None

    def clean_up(self) -> None:
        for pid in (self.process.pid, *self.seen) if self.process.poll() is None else self.seen:
            if lives(pid) and (pid == self.process.pid or "pytest" in command_of(pid)):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


def limited(
    project: Project, kind: int, *limits: int, arguments: tuple[str, ...] = (), timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Runs a session under soft and hard limits of `setrlimit`. Fails if it does not end."""
    return subprocess.run(
        [*PYTEST, "-p", "no:cacheprovider", *arguments, "scenarios/shop"],
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        preexec_fn=lambda: resource.setrlimit(kind, (limits[0], limits[-1])),
    )


def run_on_a_small_disk(project: Project, limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a session in which no file can be larger than `limit` bytes."""
    return limited(project, resource.RLIMIT_FSIZE, limit, arguments=arguments, timeout=60)
