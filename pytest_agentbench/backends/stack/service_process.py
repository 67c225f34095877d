"""Services that are processes of this machine, and their environment variables."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_agentbench.backends.stack.ownership import marked
from pytest_agentbench.backends.stack.surroundings import surroundings
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.process import end_group, foreign_environment
from pytest_agentbench.lib.wire import LOG


class ServiceProcess:
    """A service of a stack that runs as a process, in its own process group."""

    def __init__(self, run: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """Creates the object; `start` starts the process. `env` is the complete environment, because nothing is inherited."""
        self.run, self.env, self.cwd, self.log = list(run), dict(env), cwd, log
        self.command = shlex.join(run)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = str(self.cwd / self.run[0]) if "/" in self.run[0] else self.run[0]
        program = shutil.which(command, path=self.env.get("PATH"))
        if program is None:
            raise BackendError(f"the command {self.run[0]!r} (of `{self.command}`) does not exist; set `python` to an environment with it")
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
        """Ends the process and its group: SIGTERM, and SIGKILL after `grace` seconds. Then kills what is left of the group."""
        if self._process is not None:
            end_group(self._process, grace)


def environment(own: Mapping[str, str], run_dir: Path, bin_folder: Path | None) -> dict[str, str]:
    """Returns the environment variables of a service that is a process.

    They are those of the user, without variables of the test run and TMPDIR, and with the interpreter's folder first on PATH. Variables of
    the YAML (`own`) take precedence over those of the user, and these over our defaults. The variable that marks the processes of a stack
    is added.
    """
    inherited = foreign_environment()
    if bin_folder is not None:
        inherited["PATH"] = f"{bin_folder}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    inherited.pop("TMPDIR", None)
    return {**surroundings(run_dir, inherited), **inherited, **own, **marked(str(run_dir.parent))}
