"""The agent `oracle`, which runs a task's own solution. A task that this agent does not solve is broken."""

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
TAIL = 600  # Characters kept of the output of a failed solution


@dataclass(frozen=True)
class Oracle:
    """The agent `oracle`: runs the `solution/solve.sh` of a task in its sandbox, without a model. It has no options."""

    needs_task: ClassVar[bool] = True

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:  # noqa: ARG002 - calls no model
        """Runs the solution and returns its output. Raises AgentError if the solution is missing or fails."""
        shell = Shell.of(scenario, tools)
        solution = Path(shell.task.folder) / "solution"
        if not (solution / "solve.sh").is_file():
            raise AgentError(f"the task has no solution: {solution / 'solve.sh'} is missing")
        await shell.sandbox.put(solution, SOLUTION)
        done = await shell.run(f"bash {SOLUTION}/solve.sh", turn=1, env=shell.task.solution_env)
        if done.exit_code != 0:
            output = ending(done.output.strip(), TAIL) or "it printed nothing"
            raise AgentError(f"the solution ended with exit code {done.exit_code}: {output}")
        return Answer(done.output)
