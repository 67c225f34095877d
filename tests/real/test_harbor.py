"""Harbor from the package index: its models accept every exported file, and its tables of a task have the same keys as ours."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.lib.process import foreign_environment
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.harbor import (
    NEWEST_SCHEMA,
    AgentTable,
    Artifact,
    EnvironmentTable,
    SolutionTable,
    TaskToml,
    VerifierTable,
)
from tests.exports.test_exports import FULL
from tests.made_runs import run_directory
from tests.project import Project
from tests.tables.shop import ALL

PYTHON = home_of("harbor") / "bin" / "python"
LIMIT = 10  # scenarios

#: Reads each file of a job with Harbor's model, and prints the number of files and the contents of the job.
READ = """
import json, sys
from collections import Counter
from pathlib import Path
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.utils.trajectory_validator import TrajectoryValidator

job, counts = Path(sys.argv[1]), Counter()

def read(model, pattern):
    files = sorted(job.glob(pattern))
    counts[model.__name__] = len(files)
    return [model.model_validate_json(file.read_text()) for file in files]

(result,), _ = read(JobResult, "result.json"), read(JobConfig, "config.json")
trials = read(TrialResult, "*/result.json")
read(TrialConfig, "*/config.json")
for file in sorted(job.glob("*/verifier/reward.json")):
    VerifierResult(rewards=json.loads(file.read_text()))
validator = TrajectoryValidator()
trajectories = sorted(job.glob("*/agent/trajectory.json"))
(stats,) = result.stats.evals.values()
print(json.dumps({
    "counts": counts,
    "trajectories": len(trajectories),
    "errors": [error for file in trajectories if not validator.validate(file) for error in validator.errors],
    "rewards": {trial.trial_name: trial.verifier_result and trial.verifier_result.rewards for trial in trials},
    "mean": stats.metrics[0]["mean"],
}))
"""

#: Prints the newest schema of a task.toml in Harbor's package, and the keys of each table.
TABLES = """
import json
from harbor.models.task import config
from harbor.models.task.artifacts import ArtifactConfig

models = (config.TaskConfig, config.AgentConfig, config.VerifierConfig, config.EnvironmentConfig, config.SolutionConfig, ArtifactConfig)
schema = config.TaskConfig.model_fields["schema_version"].default
print(json.dumps({"schema": schema, "keys": [sorted(model.model_fields) for model in models]}))
"""

OURS: tuple[type[BaseModel], ...] = (TaskToml, AgentTable, VerifierTable, EnvironmentTable, SolutionTable, Artifact)
OLDER = {"allow_internet"}  # a field of Harbor that we convert to its new key

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_whole(home_of("harbor")), reason="NOT TESTED with Harbor: agentbench env create harbor"),
]


def asked(script: str, home: Path, *arguments: Path) -> Json:
    """Returns the output of a script in Harbor's environment, without telemetry and with its own home folder."""
    environment = {**foreign_environment(), "HARBOR_TELEMETRY": "0", "HOME": str(home)}
    done = subprocess.run([PYTHON, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    told: Json = json.loads(done.stdout)
    return told


def test_a_session(project: Project, tmp_path: Path) -> None:
    """Every trial and trajectory of a session of the banking suite is valid, and the mean is that of the run."""
    shutil.rmtree(project.root / "backends")
    (project.root / "backends").mkdir()
    project.shipped("banking")
    project.run("scenarios/banking", f"--agentbench-limit={LIMIT}").assert_outcomes(passed=LIMIT)
    (tmp_path / "out").mkdir()
    load_writer("atif")(ChosenRuns([project.directory]), tmp_path / "out")
    (job,) = (tmp_path / "out").iterdir()

    told = asked(READ, tmp_path, job)

    assert {"JobResult": 1, "JobConfig": 1, "TrialResult": LIMIT, "TrialConfig": LIMIT} == told["counts"]
    assert (LIMIT, []) == (told["trajectories"], told["errors"])
    assert {(rollout.scenario, float(rollout.scores["tsq"])) for rollout in project.rollouts} == {
        (name.partition("__")[0], rewards["reward"]) for name, rewards in told["rewards"].items()
    }
    assert project.run_json["suites"]["banking"]["scores"]["tsq"]["mean"]["value"] == pytest.approx(told["mean"])


def test_unusual_rollouts(tmp_path: Path) -> None:
    """Rollouts without a model, with several attempts, and with all fields set are also valid."""
    (tmp_path / "out").mkdir()
    load_writer("atif")(ChosenRuns([run_directory(tmp_path / "reports" / "run", *ALL, FULL)]), tmp_path / "out")

    told = {job.name: asked(READ, tmp_path, job) for job in (tmp_path / "out").iterdir()}

    assert {"run-shop": (2, []), "run-shop-react": (1, [])} == {name: (each["trajectories"], each["errors"]) for name, each in told.items()}
    assert told["run-shop"]["rewards"]["shop-2__1"] is None


def test_every_key_of_a_task_is_known(tmp_path: Path) -> None:
    """We support Harbor's newest schema and know each of its keys. So a new key of Harbor fails this test before it skips a task."""
    told = asked(TABLES, tmp_path)

    assert NEWEST_SCHEMA == told["schema"]
    assert [set()] * len(OURS) == [{*keys} - OLDER - {*table.model_fields} for keys, table in zip(told["keys"], OURS, strict=True)]
