"""The Jenkinsfile of docs/ci: its scripts run as Jenkins runs them, and it protects a machine with a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from pytest_agentbench.cli import parser
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.session.settings import OPTIONS
from tests.project import ROOT, Project

TEXT = (ROOT / "docs" / "ci" / "Jenkinsfile").read_text(encoding="utf-8")

#: The scripts in their order, as Groovy reads them.
INSTALL, FINISH, SMOKE, GATE = (
    textwrap.dedent(script).replace("\\\\\n", "\\\n") for script in re.findall(r"sh '''\n(.*?)'''", TEXT, re.DOTALL)
)


def run(project: Project, script: str) -> int:
    """Runs a script in a project as Jenkins does. The backend is the embedded engine."""
    environment = project.root / ".venv"
    if not environment.exists():
        environment.symlink_to(sys.prefix)
    words = ["sh", "-xe", "-c", script.replace("vllm", "embedded").replace("scenarios/banking", "scenarios/shop")]
    return subprocess.run(words, cwd=project.root, env=child_environment(), check=False).returncode


def test_commands_exist() -> None:
    """Every command of agentbench accepts its arguments, and every option of a session exists."""
    for words in re.findall(r"\.venv/bin/agentbench (.*)", INSTALL + FINISH + GATE):
        assert callable(parser().parse_args(words.split()).run)
    used = set(re.findall(r"--(agentbench-[a-z-]+)", SMOKE + GATE))
    assert {"agentbench-baseline", "agentbench-gate", "agentbench-limit", "agentbench-resume"} < used
    assert used <= {f"agentbench-{option.name}" for option in OPTIONS}


def test_protection() -> None:
    """Both jobs have a time limit, and always end with cleanup, scrub and the reports. Only pull requests of this repository run."""
    smoke, gate = TEXT.split("stage(")[1:]

    assert re.search(r"beforeAgent true.*expression \{ !env.CHANGE_FORK \}.*agent \{ label 'gpu' \}", smoke, re.DOTALL)
    assert "lock('agentbench-gpu-host-1')" in gate
    for stage in (smoke, gate):
        assert "timeout(" in stage
        assert "post { always { finish() } }" in stage
    assert FINISH.index("agentbench cleanup") < FINISH.index("agentbench scrub reports")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="NOT TESTED: the Jenkinsfile, because git is missing")
def test_gate(project: Project) -> None:
    """The gate passes, and fails after a regression. The installation begins without earlier runs."""
    project.suite(deterministic=True)
    subprocess.run(["git", "init", "--quiet"], cwd=project.root, check=True)
    assert 0 == run(project, SMOKE)
    assert 0 == run(project, ".venv/bin/agentbench baseline promote latest")
    subprocess.run(["git", "add", "."], cwd=project.root, check=True)
    gate = GATE.replace("banking.jsonl", "shop.jsonl").replace("--agentbench-trials=3", "")

    assert 0 == run(project, gate)
    project.backend([{"text": "I cannot help."}])
    assert 1 == run(project, gate)
    assert 0 == run(project, FINISH)
    assert "FAIL" == project.run_json["verdict"]
    assert (project.root / "junit.xml").is_file()
    assert 0 == run(project, INSTALL.splitlines()[0])
    assert ["baselines"] == [path.name for path in (project.root / "reports").iterdir() if path.name[0] != "."]


@pytest.mark.slow
def test_a_second_try(project: Project) -> None:
    """Status 6 is followed by one more session, which resumes the run."""
    project.broken_once()
    gate = re.sub(r"--agentbench-(trials|baseline)=\S+|\"--agentbench-gate=[^\"]*\"", "", GATE)

    assert 0 == run(project, gate.replace("--junitxml", "--agentbench-retries=0 --junitxml"))
    assert 2 == len(project.run_json["sessions"])
