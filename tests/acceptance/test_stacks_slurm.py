"""Sessions on a stack whose service runs on hosts of a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import Project
from tests.robustness.processes import Background
from tests.slurm_cluster import SlurmCluster
from tests.small_stacks import own_folder, until_gone
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: The first host runs the built-in engine, the second waits.
ENGINE = """
on: {slurm: {hosts: 2}}
port: PORT
run: [bash, -c, '[ "$0" = 0 ] || exec sleep 600; exec "$@"', "{rank}",
  python, -m, pytest_agentbench.engine, '{"policy": "lexical", "model": "{model}", "port": {port}}']
ready: {http: /health}
"""


@pytest.fixture(autouse=True)
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the test's stacks. Afterwards no stack may be left."""
    with own_folder(monkeypatch) as folder:
        yield folder


def placed(project: Project, port: int) -> None:
    """Writes backends/placed.yaml: the built-in engine on two hosts."""
    lines = "".join(f"    {line}\n" for line in ENGINE.strip().replace("PORT", str(port)).splitlines())
    project.write("backends/placed.yaml", f"model: small\npython: agentbench\nwarm_up: 1\nservices:\n  engine:\n{lines}")


def test_a_session(project: Project, slurm: SlurmCluster) -> None:
    """A shipped suite runs on the leader of the job. run.json has the job, its hosts and the time in the queue, and the job is gone."""
    project.shipped("banking")
    placed(project, 18481)

    project.run("scenarios/banking", "--agentbench-limit=3", "--agentbench-backend=placed")

    boot = project.run_json["backend"]["boot"]
    assert ["ok"] * 3 == [rollout.status for rollout in project.rollouts]
    assert ["n1", "n2"] == boot["places"]["engine"]["hosts"]
    assert 0 <= boot["queue_s"] < boot["services_s"]
    assert [] == slurm.jobs()
    assert {"engine.job.log", "engine.rank0.log", "engine.rank1.log"} <= {file.name for file in (project.directory / "backend").iterdir()}


def test_pytest_is_killed(project: Project, slurm: SlurmCluster, stacks: Path) -> None:
    """After SIGKILL of pytest, the stack daemon cancels the job. While the job waited, the session showed why."""
    project.shipped("banking")
    placed(project, 18482)
    slurm.run("sbatch", "--nodes=3", "--output=/dev/null", "--wrap=sleep 600")
    wait_for(lambda: "R" in slurm.run("squeue", "--noheader", "--format=%t"), "the job that is in the way")
    session = Background(project, "scenarios/banking", "--agentbench-backend=placed")
    try:
        wait_for(lambda: len(slurm.jobs()) == 2, "the job")
        wait_for(lambda: "is PENDING (Resources)" in session.output, "the reason on the terminal", 60)
        session.process.kill()
        until_gone(stacks, 90)
    finally:
        session.clean_up()

    assert 1 == len(slurm.jobs())
