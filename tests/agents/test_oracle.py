"""The agents `oracle` and `nothing`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.agents.nothing import Nothing
from pytest_agentbench.agents.oracle import Oracle
from pytest_agentbench.errors import AgentError
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer
from pytest_agentbench.suites.suite import Scenario, Task
from pytest_agentbench.tools.toolbox import Toolbox
from tests.sandbox.local import LocalSandbox
from tests.tasks import write_task

NOBODY = LLM("http://127.0.0.1:9/v1", "none")


def inside(folder: Path) -> Path:
    (folder / "sandbox").mkdir()
    return folder / "sandbox"


def scenario(task: Path) -> Scenario:
    return Scenario(task.name, (), task=Task(folder=str(task), digest="", solution_env={"WORD": "hello"}))


async def test_oracle(tmp_path: Path) -> None:
    """The solution runs in the sandbox with its own variables, as one tool call. Its output is the answer."""
    task = write_task(tmp_path, files={"solution/solve.sh": "echo $WORD > hello; cat hello\n"})
    tools = Toolbox((), LocalSandbox(inside(tmp_path)))

    assert Answer("hello\n") == await Oracle().run(scenario(task), NOBODY, tools)
    assert [("bash", "bash /solution/solve.sh")] == [(call.name, call.arguments["command"]) for call in tools.calls]


async def test_failed_and_missing_solutions(tmp_path: Path) -> None:
    """A failed or missing solution is an agent error with the reason."""
    failing = write_task(tmp_path, "failing", {"solution/solve.sh": "echo no disk; exit 3\n"})
    without = write_task(tmp_path, "without", without=["solution/solve.sh"])
    tools = Toolbox((), LocalSandbox(inside(tmp_path)))

    with pytest.raises(AgentError, match="the solution ended with exit code 3: no disk"):
        await Oracle().run(scenario(failing), NOBODY, tools)
    with pytest.raises(AgentError, match=r"solve\.sh is missing"):
        await Oracle().run(scenario(without), NOBODY, tools)


async def test_nothing(tmp_path: Path) -> None:
    """The agent `nothing` makes no call and gives an empty answer."""
    tools = Toolbox((), LocalSandbox(tmp_path))

    assert Answer("") == await Nothing().run(scenario(write_task(tmp_path)), NOBODY, tools)
    assert [] == tools.calls
