"""One process of a stack, with all that it starts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_agentbench.backends.stack.ownership import marked
from pytest_agentbench.backends.stack.surroundings import surroundings
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.child import LOG
from pytest_agentbench.lib.process import end_group, foreign_environment


class ServiceUnit(Protocol):
    """A process or a container; a `ServiceProcess`, a `Container`."""

    log: Path
    command: str  # as a shell would have it; no secrets

    def start(self) -> None:
        """Raises BackendError when it cannot be started at all."""

    def exit_code(self) -> int | None:
        """None while it runs."""

    def wait(self) -> int:
        """Blocks until it ends."""

    def health(self) -> str | None:
        """What it says of itself: `starting`, `healthy` or `unhealthy`; None where it does not."""

    def stop(self, grace: float) -> None:
        """SIGTERM, `grace` seconds, SIGKILL; returns when it is gone. May be called twice, and for one that never started."""


class ServiceProcess:
    """A command in a session of its own."""

    def __init__(self, run: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """`env` is the whole environment."""
        self.run, self.env, self.cwd, self.log = list(run), dict(env), cwd, log
        self.command = shlex.join(run)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        wanted = str(self.cwd / self.run[0]) if "/" in self.run[0] else self.run[0]
        program = shutil.which(wanted, path=self.env.get("PATH"))
        if program is None:
            raise BackendError(
                f"there is no command {self.run[0]!r} (of `{self.command}`); is its environment the right one? See `python:`"
            )
        try:
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    [program, *self.run[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**self.env, LOG: str(self.log.absolute())},
                    cwd=self.cwd,
                    start_new_session=True,
                )
        except OSError as error:
            raise BackendError(f"`{self.command}` cannot be started: {error.strerror}: {error.filename}") from error

    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def health(self) -> str | None:
        return None

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait()

    def stop(self, grace: float) -> None:
        """The whole process group; what the leader leaves behind is killed at once."""
        if self._process is not None:
            end_group(self._process, grace)


def environment(own: Mapping[str, str], run_dir: Path, bin_folder: Path | None) -> dict[str, str]:
    """The user's environment for a service: without what belongs to the test run, with the interpreter's commands first.

    What the YAML says (`own`) counts more than what the user has set, and that more than our surroundings; temporary files are ours
    to place. A mark says which stack it is of.
    """
    inherited = foreign_environment()
    if bin_folder is not None:
        inherited["PATH"] = f"{bin_folder}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    inherited.pop("TMPDIR", None)
    return {**surroundings(run_dir, inherited), **inherited, **own, **marked(str(run_dir.parent))}
