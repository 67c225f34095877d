"""Services that run on hosts of Slurm: their job script, and the job itself."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_agentbench.backends.stack.placed import note_placed, remove_note
from pytest_agentbench.backends.stack.placement import LOST, POLL, PlacedUnit
from pytest_agentbench.backends.stack.placement_spec import SlurmPlacement
from pytest_agentbench.backends.stack.surroundings import NO_REPORTS
from pytest_agentbench.clusters.slurm import SlurmJob, SlurmState, check, node_address, submit
from pytest_agentbench.errors import BackendError, ConfigError, MissingError
from pytest_agentbench.lib.process import foreign_environment

#: Values of the templates {leader} and {rank}, which are known only on the hosts. They become variables of the shell there.
LEADER, RANK = "\0leader\0", "\0rank\0"
_PATH = "\0path\0"  # the PATH of the job
_VARIABLES = {LEADER: "AGENTBENCH_LEADER", RANK: "SLURM_PROCID", _PATH: "PATH"}

KILL_WAIT = 60.0  # seconds in addition to `grace` until a cancelled job has to be over; the cluster's own KillWait is 30 s by default

#: The name of the first host is not always one that can be resolved, so its address in Slurm is used.
_FIND_LEADER = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node --oneliner "$first" | grep -o ' NodeAddr=[^ ]*')
export AGENTBENCH_LEADER=${address#*=}
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
"""


def job_environment(bin_folder: Path | None) -> dict[str, str]:
    """Returns the variables that a job gets beyond those of the process that submits it: no usage reports, and the interpreter's folder
    first on PATH.
    """
    inherited = foreign_environment()
    path = {} if bin_folder is None else {"PATH": f"{bin_folder}:{_PATH}"}
    return {**{name: value for name, value in NO_REPORTS.items() if name not in inherited}, **path}


class SlurmService(PlacedUnit):
    """One instance of a service that is a job of Slurm, with one task on each host. It can be started once.

    The task with rank 0 runs on the leader, whose address is `host`. If one task fails, Slurm ends the others. The log of each task is
    NAME.rankN.log, and NAME.job.log has the messages of Slurm.
    """

    def __init__(
        self, name: str, run: Sequence[str], env: Mapping[str, str], cwd: str, placement: SlurmPlacement, log: Path, home: Path
    ) -> None:
        """Creates the object; `start` submits the job.

        Args:
            name: Name of the instance.
            run: The words of the command, with LEADER and RANK in place of these templates.
            env: Variables that the job gets in addition to those of this process, with the same templates.
            cwd: The working directory, on a file system that the hosts share.
            placement: What is requested.
            log: The log of rank 0: NAME.rank0.log.
            home: The folder of the stack.
        """
        self.name, self.log, self._home = name, log, home
        self.job_name = f"agentbench-{home.name}-{name}"
        self.command = " ".join(map(_shell_word, run))
        self._env, self._cwd, self._placement = dict(env), cwd, placement
        self._job: SlurmJob | None = None
        self._state = SlurmState("PENDING")
        self._looking = threading.Lock()
        self._state_read_at = 0.0  # time.monotonic() at which the state was last read
        self._over = threading.Event()

    def text(self) -> str:
        """Returns the job script. It contains no secrets, because Slurm gives the job the environment of the process that submits it."""
        logs = self.log.parent
        options = (f"--job-name={self.job_name}", f"--output={logs / self.name}.job.log", "--open-mode=append", f"--chdir={self._cwd}")
        exports = [f"export {name}={_shell_word(value)}" for name, value in self._env.items()]
        task = "; ".join([*exports, f"exec {self.command}"])
        step = (
            f"srun --ntasks={self._placement.hosts} --ntasks-per-node=1 --kill-on-bad-exit=1 --unbuffered --input=none --open-mode=append"
        )
        lines = [f"#SBATCH {each}" for each in (*options, "--no-requeue", *self._placement.sbatch_options())]
        output = shlex.quote(f"--output={logs / self.name}.rank%t.log")
        return "\n".join(["#!/bin/bash", *lines, f"{_FIND_LEADER}exec {step} {output} bash -c {shlex.quote(task)}", ""])

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            check()
            note_placed(self._home, self.name, {"slurm": self.job_name})
            self._job = submit(self.text())
        except ConfigError as error:
            raise MissingError(f"{self.name}: {error}") from error
        except BackendError as error:
            raise BackendError(f"{self.name}: {error}") from error
        self.id = f"job {self._job.id}"

    def waits(self) -> str:
        self._look()
        return f"{self.id} is {self._state}" if self._state.waits else ""

    def exit_code(self) -> int | None:
        if not self._state.is_over:
            return None
        return LOST if self._state.exit_status is None else self._state.exit_status

    def wait(self) -> int:
        while (code := self.exit_code()) is None:
            self._over.wait(POLL)
            self._look()
        return code

    def stop(self, grace: float) -> None:
        if self._job is not None and not self._state.is_over:
            state = self._job.cancel(grace + KILL_WAIT)
            if not state.is_over:
                raise BackendError(
                    f"{self.name}: {self.id} is {state}, {grace + KILL_WAIT:g} s after it was cancelled; see `scontrol show job`"
                )
            self._state = state
        self._over.set()
        remove_note(self._home, self.name)

    def logs(self) -> list[Path]:
        return [*self.log.parent.glob(f"{self.name}.job.log"), *sorted(self.log.parent.glob(f"{self.name}.rank*.log"))]

    def _look(self) -> None:
        """Asks Slurm for the state of the job, at most every POLL seconds.

        If Slurm does not answer, the last state counts, because the job goes on.
        """
        with self._looking:
            if self._job is None or self._state.is_over or time.monotonic() - self._state_read_at < POLL:
                return
            self._state_read_at = time.monotonic()
            try:
                state = self._job.state()
                if state.runs and not self.host:
                    self.host, self.hosts = node_address(state.hosts[0]), state.hosts
            except BackendError:
                return
            self._state = state


def _shell_word(word: str) -> str:
    """Quotes a word for a shell. LEADER and RANK become variables, which the shell expands on each host."""
    quoted = shlex.quote(word)
    for value, variable in _VARIABLES.items():
        quoted = quoted.replace(value, f"""'"${variable}"'""")
    return quoted
