"""`--agentbench-nodes=slurm`: node workers in a job of Slurm, or with `srun` on the nodes of the job in which the session runs."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from pytest_agentbench.clusters import slurm
from pytest_agentbench.clusters.slurm import Canceller, SlurmJob, SlurmState
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.launchers.launcher import Launcher, LaunchState, WorkerTerms, each_with
from pytest_agentbench.lib.config import PositiveSeconds, Spec
from pytest_agentbench.lib.process import child_environment, end_group, end_text, ended_within
from pytest_agentbench.lib.redact import tail

NAME = "slurm"
GRACE = 5.0  # seconds that node workers get to end by themselves when the session is over
LOG_LINES = 3  # lines of the job's log in a sentence about its end

_TIME_LIMIT = "its time limit is over (nodes.slurm.time)"
#: Why a job has ended -> the words for it
_ENDS = {"CANCELLED": "it was cancelled", "PREEMPTED": "it was preempted", "TIMEOUT": _TIME_LIMIT, "NODE_FAIL": "one of its nodes failed"}


class SlurmNodes(Spec):
    """The keys of `nodes: {slurm: ...}`."""

    nodes: int = Field(1, ge=1, description="nodes of the job, each with one node worker")
    partition: str | None = Field(None, description="partition of the job")
    time: PositiveSeconds | None = Field(None, description="time limit of the job, such as `2h`")
    account: str | None = Field(None, description="account that pays for the job")
    qos: str | None = Field(None, description="quality of service")
    constraint: str | None = Field(None, description="features that the nodes need")
    gres: str | None = Field(None, description="generic resources of each node, such as `gpu:h100:8`")
    gpus: int | None = Field(None, ge=1, description="GPUs of each node")
    cpus: int | None = Field(None, ge=1, description="CPUs of each node worker; set it or `exclusive`, or Slurm may give it a single one")
    exclusive: bool = Field(False, description="whether no other jobs run on its nodes")
    options: list[str] = Field([], description="more options of sbatch, such as `[--mem=16G, --reservation=bench]`")
    setup: list[str] = Field([], description="lines of shell before the node workers start, such as `module load python`")
    slots: int | None = Field(None, ge=1, description="rollouts at the same time on each node; without it the concurrency is divided")
    via: Literal["sbatch", "srun"] | None = Field(
        None, description="`sbatch` submits a job, `srun` uses the nodes of the session's own job; default: `srun` if there is one"
    )


class Slurm(Launcher):
    """Submits a job whose nodes run a node worker each, or starts them in the job in which the session runs.

    The job ends when the node workers do, which is when the session is over or dies. If the session dies before the job has started, a
    `Canceller` cancels it.
    """

    settings_class = SlurmNodes

    def __init__(self, argument: str, settings: SlurmNodes) -> None:
        """Takes no argument. Raises ConfigError if there is one."""
        if argument:
            raise ConfigError(f"--agentbench-nodes={NAME}:{argument}: must be {NAME}; its settings are `nodes: {{{NAME}: {{nodes: 4}}}}`")
        self._settings = settings
        self._allocation = os.environ.get(slurm.IN_A_JOB, "") if settings.via != "sbatch" else ""
        self._job: SlurmJob | None = None
        self._canceller: Canceller | None = None
        self._srun: subprocess.Popen[bytes] | None = None
        self._logs = Path()
        self._last = SlurmState("PENDING")

    @property
    def _count(self) -> int:
        """Number of nodes."""
        return int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if self._allocation else self._settings.nodes

    def text(self, terms: WorkerTerms) -> str:
        options = () if self._allocation else (f"#SBATCH {shlex.quote(option)}" for option in self._options(terms))
        return "\n".join(("#!/bin/bash", *options, *self._settings.setup, f"exec {shlex.join(self._command(terms))}", ""))

    def sentence(self, terms: WorkerTerms) -> str:
        where = f"the nodes of job {self._allocation}" if self._allocation else "the nodes of a new job"
        slots = self._slots(terms)
        return f"{self._count} on {where} of Slurm, {each_with(slots)}"

    def check(self) -> None:
        if self._settings.via == "srun" and not self._allocation:
            raise ConfigError("nodes.slurm.via is srun, but this session does not run in a job of Slurm; start it with salloc or sbatch")
        slurm.check(("srun",) if self._allocation else slurm.COMMANDS)

    def start(self, terms: WorkerTerms) -> None:
        self._logs = terms.logs.absolute()
        self._logs.mkdir(parents=True, exist_ok=True)
        if not self._allocation:
            self._job = slurm.submit(self.text(terms))
            self._canceller = Canceller(self._job)
            return
        with self._log.open("ab") as log:
            self._srun = subprocess.Popen(
                ["bash", "-c", self.text(terms)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(),
                start_new_session=True,
            )

    def state(self) -> LaunchState:
        if self._srun is not None:
            code = self._srun.poll()
            problem = "" if not code else f"srun {end_text(code)}{self._end_of_log()}"
            return LaunchState(f"job {self._allocation}", problem=problem)
        if self._job is None:
            return LaunchState()
        before, problem = self._last, ""
        try:
            self._last = self._job.state()
        except BackendError as error:
            problem = f"Slurm does not say how it is: {error}"
        if before.runs and self._last.waits:
            problem = f"it has lost its nodes and waits for others: {self._last}"
        # A job that has lost a node worker fails at the end of the session. So a failure is a problem only if the session is there later.
        elif self._last.is_over and (before.is_over or self._last.word != "FAILED"):
            problem = self._why_it_ended()
        return LaunchState(f"job {self._job.id}", str(self._last) if self._last.waits else "", problem)

    def stop(self) -> None:
        if self._srun is not None and not ended_within(self._srun, GRACE):
            end_group(self._srun, GRACE)
        if self._job is not None and self._canceller is not None:
            with suppress(BackendError):  # The canceller also tries.
                if not self._has_ended(self._job):
                    self._job.cancel()
            self._canceller.close()

    @staticmethod
    def _has_ended(job: SlurmJob) -> bool:
        """Gives node workers time to end by themselves. Returns whether they have. Slurm may clean up their nodes after that."""
        deadline = time.monotonic() + GRACE
        while (state := job.state()).word == "RUNNING" and time.monotonic() < deadline:
            time.sleep(slurm.PAUSE)
        return state.is_over or state.word == "COMPLETING"

    @property
    def _log(self) -> Path:
        return self._logs / f"{NAME}-{self._allocation if self._job is None else self._job.id}.log"

    def _slots(self, terms: WorkerTerms) -> int:
        return self._settings.slots or terms.slots(self._count)

    def _options(self, terms: WorkerTerms) -> Iterator[str]:
        """Yields the options of sbatch."""
        settings = self._settings
        yield f"--job-name=agentbench-{terms.session}"
        yield from (f"--nodes={settings.nodes}", "--ntasks-per-node=1", "--no-kill")  # A lost node only loses its node worker.
        yield from (f"--output={str(terms.logs.absolute()).replace('%', '%%')}/{NAME}-%j.log", "--open-mode=append")
        for name, value in (
            ("partition", settings.partition),
            ("time", settings.time and math.ceil(settings.time / 60)),
            ("account", settings.account),
            ("qos", settings.qos),
            ("constraint", settings.constraint),
            ("gres", settings.gres),
            ("gpus-per-node", settings.gpus),
            ("cpus-per-task", settings.cpus),
        ):
            if value is not None:
                yield f"--{name}={value}"
        yield from ("--exclusive",) * settings.exclusive
        yield from settings.options

    def _command(self, terms: WorkerTerms) -> Iterator[str]:
        """Yields the words of the command that starts the node workers.

        The end of a task, of whatever kind, must not end the others, and `srun` must not read from stdin.
        """
        count = self._count
        yield from ("srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0")
        yield from ("--label", "--unbuffered", "--input=none")
        if self._settings.cpus is not None:
            yield f"--cpus-per-task={self._settings.cpus}"  # srun does not take it from sbatch.
        yield from ("--overlap",) * bool(self._allocation)  # The session itself may be a step of the job, and have all of its CPUs.
        own = Path(sys.executable).with_name("agentbench")
        yield "agentbench" if self._settings.setup or not own.exists() else str(own)
        yield from ("worker", *terms.options(self._slots(terms), file=str(terms.token_file.absolute())))

    def _why_it_ended(self) -> str:
        """Returns a sentence on a job that has ended before the session. Returns an empty text if its node workers ended normally."""
        if self._last.word == "COMPLETED":
            return ""
        status = f", exit status {self._last.exit_status}" if self._last.word == "FAILED" else ""
        return f"{_ENDS.get(self._last.word, f'it has ended: {self._last}{status}')}{self._end_of_log()}"

    def _end_of_log(self) -> str:
        """Returns the last lines of the log, to follow a sentence."""
        if not self._log.exists():
            return f"; it has written no {self._log}, so the run directory may not be on a file system that its nodes share"
        return f"; the end of {self._log}: {' | '.join(tail(self._log, LOG_LINES))}"
