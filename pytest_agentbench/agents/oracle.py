"""The agent that carries out a task's own solution: a task that it does not solve is a broken one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pytest_agentbench.agents.terminal import Shell
from pytest_agentbench.errors import AgentError
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox

SOLUTION = "/solution"
TAIL = 600  # characters of what a solution that failed printed


@dataclass(frozen=True)
class Oracle:
    """It has no options. No model is asked."""

    needs_task: ClassVar[bool] = True

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:  # noqa: ARG002 - no model is asked
        """What the solution printed; raises AgentError where there is none, and for one that fails."""
        shell = Shell.of(scenario, tools)
        solution = Path(shell.task.folder) / "solution"
        if not (solution / "solve.sh").is_file():
            raise AgentError(f"there is no solution to carry out: {solution / 'solve.sh'} is missing")
        await shell.sandbox.put(solution, SOLUTION)
        done = await shell.run(f"bash {SOLUTION}/solve.sh", turn=1, env=shell.task.solution_env)
        if done.exit_code != 0:
            said = ending(done.output.strip(), TAIL) or "it printed nothing"
            raise AgentError(f"the solution ended with exit code {done.exit_code}: {said}")
        return Answer(done.output)
