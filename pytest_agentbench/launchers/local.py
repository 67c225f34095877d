"""`--agentbench-nodes=local:N`: node workers on the session's own machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.launchers import LOCAL
from pytest_agentbench.launchers.launcher import Launcher, WorkerTerms, each_with
from pytest_agentbench.lib.config import Spec
from pytest_agentbench.lib.process import child_environment, ended_within

MOST_NODES = 1024  # larger numbers are taken for typing errors
GRACE = 5.0  # seconds that node workers get to end


class LocalNodes(Spec):
    """The keys of `nodes: {local: ...}`: none."""


class Local(Launcher):
    """Starts N node workers on this machine, with the concurrency divided among them."""

    settings_class = LocalNodes
    is_local = True

    def __init__(self, argument: str, settings: LocalNodes) -> None:
        """Takes the number of node workers as a text. Raises ConfigError if it is not one."""
        del settings
        if not argument.isdecimal() or not 1 <= int(argument) <= MOST_NODES:
            raise ConfigError(
                f"--agentbench-nodes={LOCAL}:{argument}: must be {LOCAL}:N, which starts N node workers on this machine, "
                f"with N from 1 to {MOST_NODES}"
            )
        self._count = int(argument)
        self._processes: list[subprocess.Popen[bytes]] = []

    def text(self, terms: WorkerTerms) -> str:
        return "\n".join(" ".join(("agentbench worker", *self._options(terms, number))) for number in range(1, self._count + 1))

    def sentence(self, terms: WorkerTerms) -> str:
        slots = terms.slots(self._count)
        return f"{self._count} on this machine, {each_with(slots)}"

    def start(self, terms: WorkerTerms) -> None:
        for number in range(1, self._count + 1):
            (logs := terms.logs / f"{LOCAL}-{number}").mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "pytest_agentbench.cli", "worker", *self._options(terms, number)]
            with (logs / "worker.log").open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=child_environment(), start_new_session=True
                )
            self._processes.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(f"{terms.token}\n".encode())
                process.stdin.flush()

    def _options(self, terms: WorkerTerms, number: int) -> list[str]:
        node = f"{LOCAL}-{number}"
        return [*terms.options(terms.slots(self._count), here=True), "--with-stdin", "--node", node, "--logs", str(terms.logs / node)]

    def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            if not ended_within(process, GRACE):
                process.kill()
                process.wait()
