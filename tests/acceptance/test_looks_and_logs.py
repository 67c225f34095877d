"""`--agentbench-sample-interval` and `--agentbench-log-level`, in real sessions."""

from __future__ import annotations

import pytest

from tests.project import Project

TALKATIVE = """
import logging

from pytest_agentbench import Answer


class Talkative:
    async def run(self, scenario, llm, tools):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger("shop").log(level, "it is %s", logging.getLevelName(level))
        return Answer("none")
"""


def test_the_sample_interval(project: Project) -> None:
    """run.json has the sample interval of the option instead of the backend's."""
    project.suite(scenarios=1)

    project.run("--agentbench-sample-interval=250ms", "scenarios/shop")

    assert (0.25, 0.25) == (project.run_json["settings"]["sample_interval"], project.run_json["serving"]["every_s"])


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize(
    ("level", "kept"), [("debug", ["DEBUG", "INFO", "WARNING"]), (None, ["INFO", "WARNING"]), ("warning", ["WARNING"])]
)
def test_the_log_level(project: Project, isolation: str, level: str | None, kept: list[str]) -> None:
    """Log messages of an agent at or above the level are in the record of its rollout, with and without isolation."""
    folder = project.suite(scenarios=1, agent={"kind": "./talkative.py:Talkative"}, isolation=isolation, thresholds={}).parent
    (folder / "talkative.py").write_text(TALKATIVE)

    project.run(*([f"--agentbench-log-level={level}"] if level else []), "scenarios/shop")

    (rollout,) = project.rollouts
    assert kept == [line.rpartition(" ")[2] for line in rollout.log.splitlines() if "it is" in line]
