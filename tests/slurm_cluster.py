"""A Slurm cluster for tests: munged, slurmctld and three slurmds on this host, all on 127.0.0.1, with all their files in one folder."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.waits import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "salloc")
NODES = ("n1", "n2", "n3")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=5
KillOnBadExit=1
WaitTime=1
SlurmdTimeout=60
SchedulerType=sched/builtin
SchedulerParameters=builtin_interval=1,batch_sched_delay=0,sched_interval=1,sched_min_interval=0
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE PriorityTier=1
PartitionName=urgent Nodes={names} MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE PriorityTier=2
"""


class SlurmCluster:
    """A running cluster with the nodes n1, n2 and n3. Commands find it with `SLURM_CONF`.

    A job in the partition `urgent` takes the nodes of jobs in the other partition, `all`, which then wait again. Slurm is configured to
    end all tasks of a step soon after the first one has failed.
    """

    def __init__(self, folder: Path) -> None:
        """Writes the configuration and starts the daemons."""
        self.folder = folder
        self.config = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        lines = (
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        text = CONFIG.format(folder=folder, host=host, controller=ports[0], nodes="\n".join(lines), names=",".join(NODES))
        self.config.write_text(text, encoding="utf-8")
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.config)}
        (folder / "state").mkdir()

    def start(self) -> None:
        """Starts the daemons, and returns when all nodes are idle."""
        (key := self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = (f"--{kind}-file={self.folder / f'munge.{kind}'}" for kind in ("key", "pid", "log", "seed"))
        self._daemon("munged", "--foreground", "--force", f"--socket={self.folder / 'munge.socket'}", *files)
        wait_for((self.folder / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "-D")
        for name in NODES:
            self._daemon("slurmd", "-D", "-N", name)
        wait_for(self.is_idle, "three idle nodes", 60)

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as output:
            self._daemons[" ".join(command)] = subprocess.Popen(
                [*command], env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def is_idle(self) -> bool:
        """Returns whether no node has a job, and all can be used."""
        return ["idle"] * len(NODES) == self.run("sinfo", "--noheader", "--Node", "--partition=all", "--format=%t", check=False).split()

    def run(self, *command: str, check: bool = True, folder: Path | None = None) -> str:
        """Runs a command of Slurm in a folder. Returns its output."""
        done = subprocess.run(
            command, env=self.environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 or not check, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def jobs(self, *options: str) -> list[str]:
        """Returns the ids of all jobs that are not over, or of those that options of squeue select."""
        return self.run("squeue", "--noheader", "--format=%i", *options).split()

    def clear(self) -> None:
        """Cancels all jobs, and waits until the nodes are idle."""
        for node in NODES:
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        if jobs := self.jobs():
            self.run("scancel", *jobs, check=False)
        wait_for(self.is_idle, "idle nodes", 60)

    def stop(self) -> None:
        """Ends the daemons and all processes of jobs."""
        for process in reversed(self._daemons.values()):
            for each in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else ():
                each.terminate()
            process.terminate()
        for process in self._daemons.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Runs a cluster whose files are in a folder. Skips the test if this machine cannot run one."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing or os.geteuid():
        pytest.skip(f"NOT TESTED with Slurm: {f'{missing[0]} is not installed' if missing else 'its daemons need root'}")
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in listeners]
    for each in listeners:
        each.close()
    return ports
