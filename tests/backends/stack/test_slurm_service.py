"""Services on hosts of Slurm: their job script, and stacks with jobs of a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.ownership import VARIABLE
from pytest_agentbench.backends.stack.placement_spec import SlurmPlacement
from pytest_agentbench.backends.stack.slurm_service import LEADER, RANK, SlurmService
from pytest_agentbench.errors import BackendError
from tests.backends.conftest import SERVICE, Boot, spec
from tests.slurm_cluster import SlurmCluster
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(180)

#: The first rank runs the command that follows, the others wait.
FIRST_SERVES = ["bash", "-c", 'echo "rank $0 of $1 at $2"; [ "$0" = 0 ] || exec sleep 600; exec "${@:3}"', "{rank}", "{hosts}", "{leader}"]


def placed(port: int, *options: str, hosts: int = 2, **keys: Any) -> dict[str, Any]:
    """Returns the keys of a service whose first host runs the small server."""
    run = [*FIRST_SERVES, sys.executable, str(SERVICE), "--port", "{port}", *options]
    return {"run": run, "on": {"slurm": {"hosts": hosts}}, "port": port, "ready": {"http": "/health"}, **keys}


def test_the_job_script(tmp_path: Path) -> None:
    """Words are quoted for both shells. {leader} and {rank} are variables on the hosts, in the middle of a word, too."""
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$2" = hostnames ] && echo gpu1 || echo "NodeName=gpu1 NodeAddr=10.0.0.7 Port=1"\n')
    (tmp_path / "srun").write_text('#!/bin/sh\nwhile [ "$1" != bash ]; do shift; done\nSLURM_PROCID=1 exec "$@"\n')
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    show = "import os, sys; print(sys.argv[1:], os.environ['MASTER'], os.environ.get('PYTHONPATH'))"
    words = [sys.executable, "-c", show, f"--at={LEADER}:1", f"it's {RANK}", '{"a": "$HOME"}']
    placement = SlurmPlacement(hosts=2, gpus=8, time=5400, partition="gpu", options=["--exclusive"])
    unit = SlurmService("w", words, {"MASTER": f"tcp://{LEADER}"}, "/srv", placement, tmp_path / "w.rank0.log", tmp_path / "home")
    script = unit.text()
    done = subprocess.run(
        ["bash"],
        input=script,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": "/other"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert '[\'--at=10.0.0.7:1\', "it\'s 1", \'{"a": "$HOME"}\'] tcp://10.0.0.7 None\n' == done.stdout
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=90", "--partition=gpu", "--exclusive"] == options[-6:]
    assert {"--job-name=agentbench-home-w", f"--output={tmp_path}/w.job.log", "--chdir=/srv", "--no-requeue"} <= {*options}


@pytest.mark.slow
def test_a_service_on_two_hosts(slurm: SlurmCluster, boot: Boot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service runs once on each host, and its URL is that of the first. Logs are per rank, and the end of the stack ends the job.

    The job gets secrets, but not the mark of the stack, because a stack with this folder lives on this machine only.
    """
    monkeypatch.setenv("LLM_SECRET", "swordfish")
    held = boot(spec(services={"engine": placed(18471, secrets=["LLM_SECRET"], env={"DEPTH": "{hosts}"})}))
    endpoint = held.ready()
    with urlopen("http://127.0.0.1:18471/environ", timeout=10) as answer:
        variables = json.load(answer)
    (job,) = slurm.jobs()
    logs = {file.name: file.read_text() for file in (tmp_path / "logs").glob("engine.*")}

    assert "http://127.0.0.1:18471/v1" == endpoint.url
    assert {"engine": {"id": f"job {job}", "hosts": ["n1", "n2"]}} == held.boot["places"]
    assert ["rank 0 of 2 at 127.0.0.1\n", "rank 1 of 2 at 127.0.0.1\n"] == [logs[f"engine.rank{rank}.log"] for rank in (0, 1)]
    assert ("swordfish", "2", None) == tuple(variables.get(name) for name in ("LLM_SECRET", "DEPTH", VARIABLE))
    assert "swordfish" not in slurm.run("scontrol", "write", "batch_script", job, "-")
    held.stop()
    assert [] == slurm.jobs()
    assert slurm.is_idle()


@pytest.mark.slow
def test_the_queue(slurm: SlurmCluster, boot: Boot) -> None:
    """The boot shows why the job waits. This time does not count for `ready.timeout`, and is apart from the boot's."""
    other = slurm.run("sbatch", "--parsable", "--nodes=3", "--output=/dev/null", "--wrap=sleep 600").strip()
    wait_for(lambda: "R" in slurm.run("squeue", "--noheader", "--format=%t"), "the job that is in the way")
    held = boot(spec(services={"engine": placed(18472)}, ready={"timeout": 20}))
    said: list[str] = []

    def on_progress(text: str) -> None:
        said.append(text)
        if "PENDING (Resources)" in text and len(said) > 3:
            slurm.run("scancel", other)

    held.ready(on_progress)

    assert any(text.startswith("engine: job ") and "is PENDING (Resources)" in text for text in said)
    assert 1 < held.boot["queue_s"] < held.boot["boot_s"]


@pytest.mark.slow
def test_a_rank_that_dies(slurm: SlurmCluster, boot: Boot) -> None:
    """If one host's command fails, the service has failed, and the error has the end of each log."""
    dies = placed(18473, "--slow", "60")
    dies["run"][2] = dies["run"][2].replace("exec sleep 600", "{ echo no more memory; exit 3; }")
    with pytest.raises(BackendError) as caught:
        boot(spec(services={"engine": dies})).ready()
    reason = str(caught.value)

    # srun returns the greatest exit code of all ranks, and the first rank was ended with SIGTERM.
    assert reason.startswith("engine ended with exit code 143: `bash -c ")
    assert "engine.rank1.log:\n    rank 1 of 2 at 127.0.0.1\n    no more memory" in reason
    assert "engine.job.log:\n" in reason
    wait_for(slurm.is_idle, "the end of the job")


@pytest.mark.slow
def test_a_restart(slurm: SlurmCluster, boot: Boot) -> None:
    """A cancelled job is a death like another: with `restart: 1`, another job is submitted."""
    held = boot(spec(services={"engine": placed(18474, restart=1)}))
    held.ready()
    (job,) = slurm.jobs()
    slurm.run("scancel", job)
    wait_for(lambda: slurm.jobs() not in ([], [job]), "another job")
    wait_for(lambda: _serves(18474), "the server")
    held.stop()

    assert [] == slurm.jobs()


def _serves(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@pytest.mark.slow
def test_a_killed_daemon(slurm: SlurmCluster, boot: Boot, folder: Path) -> None:
    """If the stack daemon is killed, too, what cleans up after it cancels the job."""
    held = boot(spec(services={"engine": placed(18475)}))
    held.ready()
    (job,) = slurm.jobs()
    facts = json.loads((held.home / "stack.json").read_text())
    os.kill(facts["pid"], signal.SIGKILL)
    wait_for(held.death, "the death")

    assert f"Slurm job {job}" in registry.clean_up_one(held.home)
    assert [] == slurm.jobs()
    assert not held.home.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_refused_job(boot: Boot) -> None:
    """The error of a refused job has the name of the service and Slurm's words."""
    refused = placed(18476)
    refused["on"]["slurm"]["partition"] = "night"
    with pytest.raises(BackendError, match=r"^engine: the command sbatch --parsable has failed: .*invalid partition"):
        boot(spec(services={"engine": refused})).ready()


def test_without_slurm(boot: Boot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Slurm's commands is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="Slurm's command sbatch is not in PATH"):
        boot(spec(services={"engine": placed(18477)})).ready()
