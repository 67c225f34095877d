"""The shell of a sandbox as agents use it: each command is one of the rollout's tool calls, with its time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import ToolCall
from pytest_agentbench.sandbox.sandbox import CommandResult, Sandbox
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.suites.task import Task
from pytest_agentbench.tools.toolbox import Toolbox

BASH = "bash"  # what the calls are called
A_DAY = 86400.0  # seconds: a rollout has a limit of its own


@dataclass(frozen=True)
class Shell:
    """Of one rollout."""

    task: Task
    sandbox: Sandbox
    tools: Toolbox

    @classmethod
    def of(cls, scenario: Scenario, tools: Toolbox) -> Shell:
        """Raises ConfigError for a scenario that is no task."""
        if scenario.task is None or tools.sandbox is None:
            raise ConfigError(f"scenario {scenario.id!r} is no task, so there is no sandbox to work in")
        return cls(scenario.task, tools.sandbox, tools)

    async def run(self, command: str, turn: int, *, seconds: float = A_DAY, env: Mapping[str, str] | None = None) -> CommandResult:
        """Runs a command as the agent's user, each in a new shell; recorded also where the agent's time is over in the middle of it."""
        started = time.monotonic_ns()
        try:
            return await self.sandbox.exec(command, seconds=seconds, user=self.task.agent_user, workdir=self.task.workdir, env=env)
        finally:
            ended = time.monotonic_ns()
            self.record(ToolCall(BASH, {"command": command}, turn, started_ns=started, ended_ns=ended))

    def record(self, call: ToolCall) -> None:
        self.tools.add(dataclasses.replace(call, user_turn=self.tools.user_turn))
