"""Node workers in jobs of a real Slurm: sessions that run through, wait, lose processes, and are ended."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_agentbench.clusters.slurm import SlurmJob, submit
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.launchers import make_launcher
from pytest_agentbench.launchers.launcher import WorkerTerms
from pytest_agentbench.lib.config import parse_yaml
from pytest_agentbench.lib.process import lives, variable_of, with_variable
from pytest_agentbench.runs.journal import read_journal
from tests.node_workers import lasting
from tests.project import FIND_THEN_ANSWER, PYTEST, ROOT, Project
from tests.robustness.processes import Background, command_of
from tests.slurm_cluster import SlurmCluster, slurm_cluster
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Background]

ROLLOUTS = 24
SLURM = ("--agentbench-nodes=slurm", "--agentbench-nodes-listen=127.0.0.1")
SHOP = ("--agentbench-concurrency=6", "--agentbench-retries=0", "-p", "no:cacheprovider", "scenarios/shop")
WORKER = "agentbench worker --join"
SCALE = ROOT / "docs" / "machines/scale.md"
TERMS = WorkerTerms("20261127-101500", "gpu-1:7100", "127.0.0.1:7100", "secret", Path("/r/nodes.token"), (), 10, Path("/r/a b%/nodes"))


@pytest.fixture(scope="module")
def known() -> dict[int, dict[str, Any]]:
    """Delay of the engine -> the records of a session without node workers, once it has run."""
    return {}


def shop(project: Project, known: dict[int, dict[str, Any]], ttft_ms: int) -> dict[str, Any]:
    """Creates a suite for three nodes of Slurm, on an engine with this delay. Returns the records of a session without node workers."""
    project.suite(scenarios=ROLLOUTS)
    project.backend([{"ttft_ms": ttft_ms, **rule} for rule in FIND_THEN_ANSWER], nodes={"slurm": {"nodes": 3}})
    if ttft_ms not in known:
        project.run("--agentbench-reports=elsewhere", *SHOP)
        known[ttft_ms] = lasting([*read_journal(next((project.root / "elsewhere").glob("2*")))])
        assert ROLLOUTS == len(known[ttft_ms])
    return known[ttft_ms]


@pytest.fixture
def shopped(project: Project, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Creates a suite whose session is short."""
    return shop(project, known, 100)


@pytest.fixture
def slowly(project: Project, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Creates a suite whose session is so long that something can happen in the middle of it."""
    return shop(project, known, 800)


@pytest.fixture
def fragile_slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster of its own for a test that kills a part of Slurm or gives up a node. Slurm may not use that node for half a minute."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.config))
        yield cluster


@pytest.fixture
def start(project: Project) -> Iterator[Start]:
    """Starts a session in the background, which ends with the test."""
    started: list[Background] = []

    def start(*options: str) -> Background:
        started.append(Background(project, *SLURM, *options, *SHOP))
        return started[-1]

    yield start
    for each in started:
        each.clean_up()


def launches(project: Project) -> list[dict[str, Any]]:
    return [*project.run_json["launches"]]


def in_jobs(slurm: SlurmCluster, words: str, without: str = "no such words") -> list[int]:
    """Returns the living processes of jobs whose command line contains these words, but not those."""
    pids = [pid for pid, config in with_variable("SLURM_CONF") if config == str(slurm.config) and variable_of(pid, "SLURM_JOB_ID")]
    return [pid for pid in pids if words in (command := command_of(pid)) and without not in command and lives(pid)]


def workers(slurm: SlurmCluster) -> dict[str, int]:
    """Returns the name of each node -> the process of its node worker."""
    of_node = {variable_of(pid, "SLURMD_NODENAME"): pid for pid in in_jobs(slurm, WORKER, without="srun")}
    assert {"n1", "n2", "n3"} == {*of_node}
    return of_node


def occupy(slurm: SlurmCluster, partition: str = "all") -> SlurmJob:
    """Returns a job that has all nodes."""
    job = submit("#!/bin/bash\nexec sleep 1000\n", "--nodes=3", f"--partition={partition}", "--output=/dev/null")
    wait_for(lambda: job.id in slurm.jobs() and job.state().runs, "a job on all nodes")
    return job


def waits_for(background: Background, words: str) -> None:
    """Waits until the session has printed these words. Fails if it ends without them."""
    wait_for(lambda: words in background.output or background.process.poll() is not None, words, 60)
    assert words in background.output


def has_the_same_record(background: Background, known: dict[str, Any]) -> None:
    """Waits for the end of a session whose tests all pass, with the records of a session without node workers."""
    assert 0 == background.ended(60), background.output
    assert f"{ROLLOUTS} passed" in background.output
    assert ROLLOUTS == len(background.rollouts)
    assert known == lasting(background.rollouts)


#: A conftest.py that writes files: what Slurm shows of the session's job, and the session's token for node workers.
SHOW_JOB = """
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def shown():
    yield
    job = subprocess.check_output(["squeue", "--noheader", "--format=%i"], text=True).strip()
    for number, command in enumerate((["show", "job", job], ["write", "batch_script", job, "-"])):
        Path(f"shown-{number}.txt").write_bytes(subprocess.check_output(["scontrol", *command]))
    (file,) = Path.cwd().glob("my*/2*/nodes.token")
    Path("token.txt").write_text(file.read_text().strip())
"""


@pytest.mark.slow
def test_a_job(project: Project, slurm: SlurmCluster, shopped: dict[str, Any]) -> None:
    """Three nodes make the records of a session without node workers, in one job that Slurm counts as completed.

    The name of the reports' folder has characters that a job script has to quote. Neither the job nor its script has the token.
    """
    project.write("conftest.py", SHOW_JOB)

    result = project.run("--agentbench-reports=my %j reports", *SLURM, *SHOP)

    result.assert_outcomes(passed=ROLLOUTS)
    (directory,) = (project.root / "my %j reports").glob("2*")
    records = [*read_journal(directory)]
    assert shopped == lasting(records)
    assert {"w1", "w2", "w3"} == {each.node for each in records}
    output = result.stdout.str()
    assert "agentbench: node workers: 3 on the nodes of a new job of Slurm, each with 2 slots" in output
    assert {"n1", "n2", "n3"} == {name for name in ("n1", "n2", "n3") if f" on {name} has joined, 2 slots" in output}
    shown = "".join(file.read_text() for file in project.root.glob("shown-*.txt"))
    assert "JobState=RUNNING" in shown
    assert "exec srun " in shown
    assert project.root.joinpath("token.txt").read_text() not in shown
    (log,) = (directory / "nodes").glob("slurm-*.log")
    job = SlurmJob(log.stem.removeprefix("slurm-"))
    assert "COMPLETED" == wait_for(lambda: state if (state := job.state()).is_over else None, "the end of the job").word


@pytest.mark.slow
def test_a_queue(project: Project, slurm: SlurmCluster, shopped: dict[str, Any], start: Start) -> None:
    """A job waits for its nodes longer than node workers may be missing. The user sees why, and the time in the queue is recorded."""
    other = occupy(slurm)
    background = start("--agentbench-nodes-wait=2s")
    waits_for(background, "wait for machines: PENDING (Resources)")
    time.sleep(4)
    other.cancel()

    has_the_same_record(background, shopped)
    (launch,) = launches(project)
    assert launch["queue_s"] > 4
    assert launch["problems"] == []


@pytest.mark.slow
def test_preemption(project: Project, slurm: SlurmCluster, slowly: dict[str, Any], start: Start) -> None:
    """A job that has to give its nodes to another one waits for nodes again, and the session goes on when it has them."""
    background = start("--agentbench-nodes-wait=20s")
    background.in_the_middle()
    (job,) = slurm.jobs()
    other = occupy(slurm, "urgent")
    waits_for(background, "it has lost its nodes and waits for others: PENDING (")
    other.cancel()
    slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now")  # Slurm waits for two minutes before it starts a job again.

    has_the_same_record(background, slowly)
    assert 1 < max(each.attempt for each in background.rollouts)
    assert [1] == [len(launch["problems"]) for launch in launches(project)]


@pytest.mark.slow
def test_scancel(project: Project, slurm: SlurmCluster, slowly: dict[str, Any], start: Start) -> None:
    """A session whose job is cancelled says so, and ends when node workers have been missing for too long. It can be resumed."""
    background = start("--agentbench-nodes-wait=8s")
    background.in_the_middle()
    (job,) = slurm.jobs()
    slurm.run("scancel", job)

    assert 0 != background.ended(60)
    assert "no node worker has been there for 8 s" in background.output
    assert [f"job {job}"] == [launch["id"] for launch in launches(project)]
    assert ["it was cancelled"] == [each.partition(";")[0] for each in launches(project)[0]["problems"]]

    resumed = project.run(f"--agentbench-resume={background.directory.name}", *SHOP)
    resumed.assert_outcomes(passed=ROLLOUTS)
    assert slowly == lasting(background.rollouts)


@pytest.mark.slow
def test_srun_is_killed(project: Project, slurm: SlurmCluster, slowly: dict[str, Any], start: Start) -> None:
    """The node workers end with srun, and so does the job. The session shows the end of its log."""
    background = start()
    background.in_the_middle()
    for pid in in_jobs(slurm, "srun --nodes=3"):
        os.kill(pid, signal.SIGKILL)
    waits_for(background, "it has ended: FAILED (")
    assert not slurm.jobs()
    assert not in_jobs(slurm, "agentbench")

    os.kill(background.process.pid, signal.SIGINT)
    background.ended(60)
    (problem,) = launches(project)[0]["problems"]
    assert f"; the end of {project.directory}/nodes/slurm-" in problem


@pytest.mark.slow
def test_lost_tasks_and_nodes(project: Project, fragile_slurm: SlurmCluster, slowly: dict[str, Any], start: Start) -> None:
    """The death of a node worker and the loss of a node end neither the job nor the session."""
    background = start("--agentbench-nodes-wait=10s")
    background.in_the_middle()
    of_node = workers(fragile_slurm)
    os.kill(of_node["n1"], signal.SIGKILL)
    fragile_slurm.run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    wait_for(lambda: not lives(of_node["n3"]), "the loss of the node")

    has_the_same_record(background, slowly)
    assert 1 < max(each.attempt for each in background.rollouts)
    assert [[]] == [launch["problems"] for launch in launches(project)]


@pytest.mark.slow
def test_slurmstepd_is_killed(fragile_slurm: SlurmCluster, slowly: dict[str, Any], start: Start) -> None:
    """A node worker does not need Slurm's process on its node, and the other tasks do not end."""
    background = start("--agentbench-nodes-wait=10s")
    background.in_the_middle()
    os.kill(psutil.Process(workers(fragile_slurm)["n2"]).ppid(), signal.SIGKILL)

    has_the_same_record(background, slowly)
    assert {1} == {each.attempt for each in background.rollouts}


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_a_session(slurm: SlurmCluster, slowly: dict[str, Any], start: Start, signum: signal.Signals) -> None:
    """A session that ends in the middle leaves no job, and no process on the nodes."""
    background = start()
    background.in_the_middle()
    os.kill(background.process.pid, signum)
    background.ended(60)
    wait_for(lambda: not slurm.jobs(), "the end of the job")
    assert not in_jobs(slurm, "agentbench")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_a_session_that_waits(slurm: SlurmCluster, shopped: dict[str, Any], start: Start, signum: signal.Signals) -> None:
    """A session that ends while its job waits leaves no job."""
    other = occupy(slurm)
    background = start()
    waits_for(background, "PENDING (Resources)")
    os.kill(background.process.pid, signum)
    background.ended(60)
    wait_for(lambda: [other.id] == slurm.jobs(), "the end of the job")


@pytest.mark.slow
def test_in_an_allocation(project: Project, slurm: SlurmCluster, shopped: dict[str, Any]) -> None:
    """A session that runs in a job, even in a step of it, starts its node workers on the nodes of that job, and submits none."""
    before = slurm.jobs("--states=all")
    output = slurm.run("salloc", "--nodes=3", "srun", "--nodes=1", "--ntasks=1", *PYTEST, *SLURM, *SHOP, folder=project.root)

    assert f"{ROLLOUTS} passed" in output
    assert shopped == lasting(project.rollouts)
    assert {"w1", "w2", "w3"} == {each.node for each in project.rollouts}
    (launch,) = launches(project)
    job = launch["id"].removeprefix("job ")
    assert f"agentbench: node workers: 3 on the nodes of job {job} of Slurm, each with 2 slots" in output
    assert [f"slurm-{job}.log"] == [each.name for each in (project.directory / "nodes").iterdir()]
    assert {job} == {*slurm.jobs("--states=all")} - {*before}


@pytest.mark.slow
def test_the_recipe(project: Project, slurm: SlurmCluster, slowly: dict[str, Any]) -> None:
    """The script of docs/machines/scale.md runs a session and its node workers in one job. A requeued job resumes the run."""
    script = next(each for each in SCALE.read_text(encoding="utf-8").split("```bash\n") if "SLURM_JOB_ID" in each).partition("```")[0]
    for old, new in {
        "--nodes=4": "--nodes=3",
        "source venv/bin/activate": "",
        "pytest scenarios/banking -n 64 --agentbench-backend=gpu-1": shlex.join([*PYTEST, *SHOP]),
        '"$(hostname):7100"': "127.0.0.1",
    }.items():
        assert old in script
        script = script.replace(old, new)
    job = submit(script, f"--chdir={project.root}", f"--output={(output := project.root / 'output.txt')}")
    wait_for(lambda: [each for each in project.root.glob(f"reports/2*-job-{job.id}/rollouts.jsonl") if each.stat().st_size], "a record", 60)

    slurm.run("scontrol", "requeue", job.id)
    wait_for(lambda: job.state().waits, "the requeued job", 60)
    slurm.run("scontrol", "update", f"jobid={job.id}", "StartTime=now")

    assert "COMPLETED" == wait_for(lambda: state if (state := job.state()).is_over else None, "the end of the job", 90).word
    assert "session 2 of this run" in output.read_text()
    assert slowly == lasting(project.rollouts)
    assert [f"job {job.id}"] * 2 == [launch["id"] for launch in launches(project)]


@pytest.mark.slow
def test_a_refused_job(project: Project, slurm: SlurmCluster) -> None:
    """A session whose job is refused ends at once, with Slurm's own words."""
    project.suite()
    project.backend(nodes={"slurm": {"partition": "night"}})

    result = project.run(*SLURM, *SHOP)

    assert 0 != result.ret
    assert "no node workers can be started: the command sbatch --parsable has failed: " in result.stdout.str()
    assert "invalid partition specified: night" in result.stdout.str()


def test_the_script() -> None:
    """Each setting is an option of sbatch, and the command follows the lines of the set-up. The token is not in it."""
    text = """
      nodes: 4
      partition: gpu
      time: 90m
      account: team
      qos: high
      constraint: a|b
      gres: gpu:h100:8
      gpus: 2
      cpus: 16
      exclusive: true
      options: [--mem=16G]
      setup: [module load python, source v/bin/activate]
    """
    script = make_launcher("slurm", {"slurm": parse_yaml(text, "x.yaml")}, "backend 'x'").text(TERMS)
    *lines, command = script.splitlines()

    assert lines == [
        "#!/bin/bash",
        "#SBATCH --job-name=agentbench-20261127-101500",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --no-kill",
        "#SBATCH '--output=/r/a b%%/nodes/slurm-%j.log'",
        "#SBATCH --open-mode=append",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=90",
        "#SBATCH --account=team",
        "#SBATCH --qos=high",
        "#SBATCH '--constraint=a|b'",
        "#SBATCH --gres=gpu:h100:8",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --exclusive",
        "#SBATCH --mem=16G",
        "module load python",
        "source v/bin/activate",
    ]
    assert command == (
        "exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --label --unbuffered --input=none "
        "--cpus-per-task=16 agentbench worker --join gpu-1:7100 --token-file /r/nodes.token --slots 3"
    )


def test_wrong_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument is refused, and so is `srun` outside of a job."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    with pytest.raises(ConfigError, match=r"^--agentbench-nodes=slurm:4: must be slurm; its settings are `nodes: \{slurm: "):
        make_launcher("slurm:4", {}, "backend 'x'")
    with pytest.raises(ConfigError, match=r"^nodes\.slurm\.via is srun, but this session does not run in a job of Slurm"):
        make_launcher("slurm", {"slurm": {"via": "srun"}}, "backend 'x'").check()
