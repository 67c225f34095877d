"""If one setup is run repeatedly, the verdict says how often, and promoting the best run as a baseline gives a warning."""

from __future__ import annotations

import subprocess

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.runs.run_file import read_run
from tests.project import Project, page

#: An agent whose answers improve from run to run, although nothing has changed.
AGENT = """
from pathlib import Path

async def run(scenario):
    seen = Path(__file__).parents[2] / "runs-so-far"
    return "lamp" if int(seen.read_text()) > int(scenario.id[-1]) else "none"
"""
TEST = "def test_it(rollout): assert rollout.answer == 'lamp'\n"


@pytest.fixture
def lucky(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project under git whose suite of three scenarios passes only in the third run."""
    project.suite(scenarios=3, test=TEST, agent={"kind": "./agent.py:run"}, scorers=["./scorers.py:right"], thresholds={"right.mean": 0.9})
    project.write("scenarios/shop/agent.py", AGENT)
    project.write("scenarios/shop/scorers.py", "def right(scenario, rollout):\n    return float(rollout.answer == 'lamp')\n")
    project.write(".gitignore", "runs-so-far\nreports/\n__pycache__/\n")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "Start"]):
        subprocess.run(["git", *words], cwd=project.root, check=True)
    monkeypatch.chdir(project.root)
    return project


def tried(project: Project, number: int, *words: str) -> pytest.RunResult:
    (project.root / "runs-so-far").write_text(str(number))
    return project.run("scenarios/shop", *words)


@pytest.mark.slow
def test_run_until_it_is_green(lucky: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The third run passes, and says that two before it did not.

    Promoting the best run gives a warning. With more trials, the setup is another one.
    """
    assert [1, 1] == [tried(lucky, number).ret for number in (1, 2)]

    third = tried(lucky, 3)

    assert 0 == third.ret
    run = read_run(lucky.directory)
    said = phrases.earlier_runs(run.earlier)
    assert "3rd" in said and said in headline(run)
    assert headline(run) in (lucky.directory / "report.md").read_text().splitlines()[0]
    assert "3rd" in " ".join(page(third)[:3])
    earlier = lucky.run_json["earlier"]
    assert (2, 2) == (earlier["runs"], len(earlier["not_passed"]))

    capsys.readouterr()
    assert 0 == main(["baseline", "promote"])
    assert "shop: shop right.mean is the best of 3 runs of this setup, probably by luck (about 0.9 " in capsys.readouterr().out
    assert 0 == main(["baseline", "promote", earlier["not_passed"][1], "--reason", "the newest before"])
    assert "probably by luck" not in capsys.readouterr().out

    tried(lucky, 3, "--agentbench-trials=2")
    assert {"runs": 0, "not_passed": []} == lucky.run_json["earlier"]
