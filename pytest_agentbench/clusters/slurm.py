"""Submits jobs to Slurm with its own commands, and follows and cancels them."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.process import child_environment, ended_within

COMMANDS = ("sbatch", "scontrol", "scancel")
PATIENCE = 120.0  # seconds that a command may take; Slurm's commands themselves try a daemon that does not answer for about a minute
PAUSE = 0.25  # seconds between two looks at a job that ends
UNKNOWN = "UNKNOWN"  # state of a job that Slurm has forgotten, by default five minutes after its end

IN_A_JOB = "SLURM_JOB_ID"  # variable of all processes of a job

_FORGOTTEN = "Invalid job id"
_SETTINGS = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"))  # variables that lead to the cluster
_RUNS = frozenset(("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"))
_OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", UNKNOWN)
)


@dataclass(frozen=True)
class SlurmState:
    """What Slurm knows of a job. A job waits, runs, or is over; a job that is requeued waits again."""

    word: str  # state in Slurm's words, such as PENDING, RUNNING, COMPLETED, or UNKNOWN
    reason: str = ""  # why it is in this state, such as Resources or NonZeroExitCode; empty if Slurm gives no reason
    hosts: tuple[str, ...] = ()  # names of its nodes; empty while it waits
    exit_status: int | None = None  # of the script, negative for a signal; None unless the job is over and known

    @property
    def waits(self) -> bool:
        """Whether it has no usable nodes now, and may get them later. This includes a job that is suspended."""
        return not self.runs and not self.is_over

    @property
    def runs(self) -> bool:
        """Whether it has its nodes, including a job whose processes are being ended."""
        return self.word in _RUNS

    @property
    def is_over(self) -> bool:
        """Whether all of its processes have ended."""
        return self.word in _OVER

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


class SlurmJob:
    """A job that was submitted. Not thread-safe."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._hosts: dict[str, tuple[str, ...]] = {}  # list of nodes as Slurm writes it -> its names

    def state(self) -> SlurmState:
        """Asks Slurm for the state of the job. Raises BackendError if Slurm does not answer."""
        try:
            text = _run("scontrol", "show", "job", "--oneliner", self.id)
        except BackendError as error:
            if _FORGOTTEN in str(error):
                return SlurmState(UNKNOWN)
            raise
        word, reason = _field(text, "JobState"), _field(text, "Reason")
        code, signal = _field(text, "ExitCode").split(":")
        status = (-int(signal) or int(code)) if word in _OVER else None
        return SlurmState(word, "" if reason == "None" else reason, self._names(_field(text, "NodeList")), status)

    def wait(self, seconds: float) -> SlurmState:
        """Waits until all of its processes have ended, but not longer than `seconds`. Returns the last state.

        Raises BackendError if Slurm does not answer.
        """
        deadline = time.monotonic() + seconds
        while not (state := self.state()).is_over and time.monotonic() < deadline:
            time.sleep(PAUSE)
        return state

    def cancel(self, seconds: float = 60.0) -> SlurmState:
        """Cancels the job, and waits for its end as `wait` does. Returns the last state.

        Raises BackendError if Slurm does not answer or refuses, but not if the job is over already.
        """
        try:
            _run("scancel", self.id)
        except BackendError:
            if not self.state().is_over:
                raise
        return self.wait(seconds)

    def _names(self, nodes: str) -> tuple[str, ...]:
        """Returns the names in a list such as `n[1-3],gpu7`."""
        if nodes in ("", "(null)"):
            return ()
        if nodes not in self._hosts:
            self._hosts[nodes] = tuple(_run("scontrol", "show", "hostnames", nodes).split()) if re.search(r"[\[,]", nodes) else (nodes,)
        return self._hosts[nodes]


class Canceller:
    """A process that cancels a job when this process ends, also if that is by SIGKILL: it waits for the end of its stdin."""

    def __init__(self, job: SlurmJob) -> None:
        """Starts the process."""
        command = ["sh", "-c", 'cat >/dev/null; exec scancel "$0"', job.id]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=_environment(), start_new_session=True
        )

    def close(self) -> None:
        """Has the job cancelled now. Returns when Slurm has been told."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not ended_within(self._process, PATIENCE):
            self._process.kill()
            self._process.wait()


def check(commands: Sequence[str] = COMMANDS) -> None:
    """Raises ConfigError if a command of Slurm is not installed."""
    if missing := next((name for name in commands if shutil.which(name) is None), None):
        raise ConfigError(
            f"Slurm's command {missing} is not in PATH; run on a login node of the cluster, or install it (Debian: slurm-client)"
        )


def submit(script: str, *options: str) -> SlurmJob:
    """Submits a batch script.

    Args:
        script: Its text, which begins with `#!`. Options can stand there in lines `#SBATCH`.
        options: Options of sbatch, which take precedence over those in the script.

    Raises:
        BackendError: Slurm refuses the job or does not answer. The message contains sbatch's own.
    """
    return SlurmJob(_run("sbatch", "--parsable", *options, stdin=script).strip().partition(";")[0])


def node_address(name: str) -> str:
    """Returns the address of a node, which is its name unless the cluster's configuration says otherwise."""
    text = _run("scontrol", "show", "node", "--oneliner", name)
    match = re.search(r"\sNodeAddr=(\S+)", text)
    return match[1] if match else name


def cancel_named(name: str) -> list[str]:
    """Cancels all jobs of this user that have a name and are not over. Returns their ids. Raises BackendError if Slurm does not answer."""
    jobs = _run("squeue", "--noheader", f"--user={getpass.getuser()}", f"--name={name}", "--format=%i").split()
    for job in jobs:
        SlurmJob(job).cancel()
    return jobs


def _field(text: str, name: str) -> str:
    """Returns the value of a field in the line that `scontrol show job --oneliner` prints."""
    match = re.search(rf"(?:^|\s){name}=(\S*)", text)
    if match is None:
        raise BackendError(f"the command scontrol show job has printed no {name}: {text.strip()[:200]}")
    return match[1]


def _run(*command: str, stdin: str = "") -> str:
    """Runs a command of Slurm. Returns its output. Raises BackendError with what it has written to stderr if it fails.

    Ctrl-C in the terminal of this process does not reach the command.
    """
    try:
        done = subprocess.run(
            command,
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE,
            env=_environment(),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"the command {' '.join(command)} has not answered within {PATIENCE:g} s") from error
    except OSError as error:
        raise BackendError(f"`{command[0]}` cannot be started: {error.strerror}") from error
    if done.returncode:
        error_text = " ".join(done.stderr.decode(errors="replace").split()) or f"exit status {done.returncode}"
        raise BackendError(f"the command {' '.join(command)} has failed: {error_text}")
    return done.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Returns the environment for a command. Within a job, the variables that describe that job are left out, or sbatch would use them."""
    environment = child_environment()
    if IN_A_JOB not in os.environ:
        return environment
    return {name: value for name, value in environment.items() if name in _SETTINGS or not name.startswith(("SLURM", "SRUN_"))}
