"""Jobs on a real Slurm are submitted, followed and cancelled, and its errors are shown in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.clusters.slurm import UNKNOWN, SlurmJob, SlurmState, check, submit
from pytest_agentbench.errors import BackendError, ConfigError
from tests.slurm_cluster import SlurmCluster
from tests.waits import wait_for

QUIET = "--output=/dev/null"


def script(*lines: str) -> str:
    return "\n".join(("#!/bin/bash", *lines, ""))


def ended(job: SlurmJob) -> SlurmState:
    return wait_for(lambda: state if (state := job.state()).is_over else None, f"the end of job {job.id}")


@pytest.mark.slow
def test_the_life_of_jobs(slurm: SlurmCluster, tmp_path: Path) -> None:
    """A job runs on its nodes, one without free nodes waits with a reason, and both end with their exit status."""
    go, output = tmp_path / "go", tmp_path / "output"
    first = submit(script("#SBATCH --nodes=2", f"while ! [ -e {go} ]; do sleep 0.1; done", "echo done", "exit 7"), f"--output={output}")
    wait_for(lambda: first.state().runs, "the first job")
    second = submit(script("#SBATCH --nodes=3"), QUIET)
    waiting = wait_for(lambda: state if (state := second.state()).reason == "Resources" else None, "the reason of the second job")

    assert SlurmState("RUNNING", "", ("n1", "n2")) == first.state()
    assert SlurmState("PENDING", "Resources") == waiting
    assert waiting.waits
    assert "PENDING (Resources)" == str(waiting)

    go.touch()
    assert SlurmState("FAILED", "NonZeroExitCode", ("n1", "n2"), 7) == ended(first)
    assert SlurmState("COMPLETED", "", ("n1", "n2", "n3"), 0) == ended(second)
    assert "done\n" == output.read_text()


@pytest.mark.slow
def test_cancel(slurm: SlurmCluster) -> None:
    """`cancel` returns when the job has ended, whether it runs, waits or is over. A job that Slurm does not know is over."""
    running = submit(script("#SBATCH --nodes=3", "sleep 100"), QUIET)
    wait_for(lambda: running.state().runs, "the job")
    waiting = submit(script("sleep 100"), QUIET)

    assert "CANCELLED" == waiting.cancel().word
    assert SlurmState("CANCELLED", "", ("n1", "n2", "n3"), -15) == running.cancel()
    assert "CANCELLED" == running.cancel().word
    assert SlurmState(UNKNOWN) == SlurmJob("987654").cancel()
    assert slurm.is_idle()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_job_that_a_job_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new job does not inherit the variables that describe the job in which this process runs."""
    monkeypatch.setenv("SLURM_JOB_ID", "987654")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "7")
    monkeypatch.setenv("OTHER", "8")
    job = submit(script('echo "$SLURM_JOB_ID ${SLURM_MEM_PER_CPU-none} $OTHER"'), f"--output={tmp_path / 'output'}")

    assert "COMPLETED" == ended(job).word
    assert f"{job.id} none 8\n" == (tmp_path / "output").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_refused_jobs() -> None:
    """The error of a refused job contains Slurm's own words."""
    with pytest.raises(
        BackendError, match=r"^the command sbatch --parsable --partition=night has failed: .*invalid partition specified: night"
    ):
        submit(script("true"), "--partition=night")


@pytest.mark.slow
def test_a_controller_that_does_not_answer(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job is not taken for over if Slurm's daemon cannot be asked."""
    text = slurm.config.read_text().replace("SlurmctldPort=", "MessageTimeout=1\nSlurmctldPort=1\n#")
    (tmp_path / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))

    with pytest.raises(
        BackendError, match=r"^the command scontrol show job --oneliner 1 has failed: .*[Uu]nable to contact slurm controller"
    ):
        SlurmJob("1").state()


def test_slurm_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the missing command and its package."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"^Slurm's command sbatch is not in PATH; .*slurm-client"):
        check()
    with pytest.raises(BackendError, match=r"^`sbatch` cannot be started: No such file or directory$"):
        submit(script("true"))
