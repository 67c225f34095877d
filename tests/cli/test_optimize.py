"""`agentbench optimize`: a real study that is ended and continued, and the mistakes that it refuses before anything boots."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.optimize.confirmation import REFUTED
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.run_file import find_run, read_run
from tests.project import ALONE, FIND_THEN_ANSWER, Project
from tests.small_stacks import left, own_folder
from tests.waits import wait_for

SPACE = "parameters: {agent.max_turns: [1, 4]}"


def measured(directory: Path) -> set[str]:
    """Returns the scenarios of a run, without first calls before its blocks."""
    return {each.scenario for each in read_journal(directory) if each.kind == "scenario"}


def started(project: Project, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest_agentbench.cli", "optimize", "scenarios/shop", "--space=space.yaml", *words, "--", *ALONE]
    return subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_study(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study ranks the faster setting first and confirms it on other scenarios. SIGTERM ends it with its stack, and it continues.

    The stack boots once for all trials of each process, because the space has settings of the agent only.
    """
    project.suite(scenarios=16, agent={"kind": "tool_calling", "max_turns": 4}, deterministic=True)
    project.write("space.yaml", SPACE)
    rules = project.write("rules.json", json.dumps(FIND_THEN_ANSWER))
    config = json.dumps({"policy": "script", "script": str(rules), "model": "m", "ttft_ms": 40})[:-1] + ', "port": {port}}'
    engine = {"run": [sys.executable, "-m", "pytest_agentbench.engine", config], "ready": {"http": "/health"}}
    project.write("backends/one.yaml", json.dumps({"model": "m", "services": {"engine": engine}, "warm_up": 0}))
    words = ("--backend=one", "--trials=2", "--concurrency=2", "--confirmation-trials=2")
    runs = project.root / "reports" / "optimize" / "shop" / "runs"

    with own_folder(monkeypatch) as stacks:
        study = started(project, *words)
        wait_for(lambda: [*runs.glob("*-trial-0-part-0/run.json")] or study.poll() is not None, "the first session", 200)
        study.send_signal(signal.SIGTERM)
        first, _ = study.communicate(timeout=120)
        assert 128 + signal.SIGTERM == study.returncode, first
        assert [] == left(stacks)

        study = started(project, *words)
        second, _ = study.communicate(timeout=400)

    assert 0 == study.returncode, second
    found = json.loads((runs.parent / "optimize.json").read_text(encoding="utf-8"))
    assert ({"agent.max_turns": 1}, 2) == (found["settings"], len(found["trials"]))
    assert found["verdict"] != REFUTED
    assert "Ranking of the search (no claim)" in second
    scenarios = {name: measured(find_run(name, runs)) for name in ("trial-0-part-1", "confirmation")}
    assert set() == scenarios["trial-0-part-1"] & scenarios["confirmation"]
    assert {*found["held_out"]} == scenarios["confirmation"]
    identity = read_run(find_run("confirmation", runs)).identity
    assert identity is not None
    assert identity.options.warm


@pytest.mark.parametrize(
    ("space", "words", "message"),
    [
        ("parameters: {agent.max_turn: [1]}", (), "did you mean 'max_turns'?"),
        ("parameters: {backend.ttft: [1]}", (), "did you mean 'ttft_ms'?"),
        ("parameters: {variant: [reakt]}", (), "no variant 'reakt'"),
        ("parameter: {concurrency: [1]}", (), "did you mean 'parameters'?"),
        ("{objectives: [cost], parameters: {concurrency: [1, 2]}}", (), "cost needs `prices` in the backend embedded; tokens needs none"),
        (SPACE, ("--margin=0",), "must be greater than 0"),
        (SPACE, ("--backend=embeded",), "embedded"),
    ],
)
def test_mistakes_are_refused_before_anything_boots(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, space: str, words: tuple[str, ...], message: str
) -> None:
    """An unknown setting, variant, key or backend is a usage error with the name that was probably meant."""
    project.suite(scenarios=16)
    monkeypatch.chdir(project.root)
    Path("space.yaml").write_text(space, encoding="utf-8")

    try:
        status = main(["optimize", "scenarios/shop", "--space=space.yaml", *words])
    except SystemExit as error:
        status = int(str(error.code))

    assert 4 == status
    assert message in capsys.readouterr().err
    assert not Path("reports").exists()


def test_a_suite_that_is_too_small(project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite whose scenarios are too few for search and confirmation is refused."""
    project.suite(scenarios=5)
    monkeypatch.chdir(project.root)
    Path("space.yaml").write_text(SPACE, encoding="utf-8")

    assert 4 == main(["optimize", "scenarios/shop", "--space=space.yaml"])
    assert "shop has 5 scenarios, but search and confirmation together need 12" in capsys.readouterr().err


def test_without_optuna(project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If Optuna is not installed, the error says how to install it, and no study begins."""
    project.suite(scenarios=16)
    monkeypatch.chdir(project.root)
    Path("space.yaml").write_text(SPACE, encoding="utf-8")
    monkeypatch.setattr("pytest_agentbench.optimize.search.find_spec", lambda _: None)

    assert 4 == main(["optimize", "scenarios/shop", "--space=space.yaml"])
    assert "pip install 'pytest-agentbench[optimize]'" in capsys.readouterr().err
    assert not Path("reports").exists()
