"""The agent `command`: runs a program in any language or framework.

The program gets a scenario and the address of the tap, the proxy that records its calls of the model.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pytest_agentbench.agents.factory import A_PATH
from pytest_agentbench.errors import AgentError, InfraError, RolloutError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.lib.key_shapes import SECRET_NAME
from pytest_agentbench.lib.model_texts import object_text
from pytest_agentbench.lib.options import check_options
from pytest_agentbench.lib.process import end_text, foreign_environment
from pytest_agentbench.lib.supervisor import supervisor_command
from pytest_agentbench.llm.client import LLM, NO_KEY
from pytest_agentbench.records import Answer, Json, Program
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.source import sample_response
from pytest_agentbench.tools.toolbox import Toolbox

TAIL = 600  # Characters of stderr in the reason of a failure


@dataclass(frozen=True)
class Command:
    """The agent `command`: runs a program for each scenario. The program writes or prints the answer. See docs/agents/command-agents.md."""

    # A list with the program and its arguments. A program with a `/` is relative to `cwd`; any other is searched in the `PATH`.
    program: Sequence[str]
    cwd: str = field(default=".", metadata=A_PATH)  # The working directory, relative to the suite's folder.
    # An environment, as in [`python:` of a service](prepare.md#environments), whose commands come first in the `PATH`.
    python: str | None = None
    # Additional environment variables. They are recorded with the run, so secrets belong in `keys`.
    env: Mapping[str, str] = field(default_factory=dict)
    keys: Sequence[str] = ()  # Names of environment variables with secrets that are passed to the program.
    own_tools: Sequence[str] = ()  # Names of the framework's own tools; their calls do not count as calls of the scenario's tools.

    black_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self)
        if not self.program:
            raise ValueError("program must be a list of a program and its arguments, for example [python3, agent.py], not []")
        if not Path(self.cwd).is_dir():
            raise ValueError(f"cwd: the folder {self.cwd} does not exist; give an existing folder, relative to the suite's folder")
        self._program_path(self._environment())

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        supervisor = await asyncio.create_subprocess_exec(
            *supervisor_command("pytest_agentbench.lib.supervisor.program"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert supervisor.stdin is not None and supervisor.stdout is not None
        supervisor.stdin.write(json.dumps(self._job(scenario, llm, tools)).encode() + b"\n")
        reading = asyncio.ensure_future(supervisor.stdout.read())
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:  # The time budget is used up, or the rollout was cancelled.
            supervisor.stdin.close()  # Ends the program.
            with suppress(RolloutError):
                await self._record_run(await reading, scenario, llm, tools)
            raise
        finally:
            supervisor.stdin.close()
            await supervisor.wait()
        return await self._record_run(reading.result(), scenario, llm, tools)

    def _job(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Json:
        """Returns the job for the supervisor process, which runs the program. The program does not get the labels (expected results)."""
        environment = self._environment()
        job: Json = {
            "model": llm.model,
            "sampling": llm.sampling,
            "messages": scenario.messages,
            "tools": [
                {**schema["function"], "response": sample_response(tool)}
                for schema, tool in zip(tools.schemas, tools.tools.values(), strict=True)
            ],
        }
        address = {
            "OPENAI_BASE_URL": llm.base_url,
            "OPENAI_API_KEY": NO_KEY,
            "ANTHROPIC_BASE_URL": llm.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": NO_KEY,
            "AGENTBENCH_MODEL": llm.model,
        }
        run = [self._program_path(environment), *self.program[1:]]
        return {"run": run, "cwd": self.cwd, "env": {**environment, **address}, "scenario": json.dumps(job)}

    def _environment(self) -> dict[str, str]:
        """Returns the environment of the program: `env` and the user's variables.

        It contains no variables of the test run, and no secrets that are not in `keys`.
        """
        from pytest_agentbench.backends.machine.virtual_environments import resolve_python

        inherited = {name: value for name, value in foreign_environment().items() if name in self.keys or not SECRET_NAME.search(name)}
        if self.python is not None:
            commands = resolve_python(self.python, Path(self.cwd)).parent
            inherited["PATH"] = f"{commands}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        return {**inherited, **self.env}

    def _program_path(self, environment: Mapping[str, str]) -> str:
        """Returns the path of the program. Raises ValueError if it does not exist or is not executable."""
        name = self.program[0]
        path = str(Path(self.cwd) / name) if "/" in name else name
        program = shutil.which(path, path=environment.get("PATH"))
        if program is None:
            where = f"{self.cwd}; correct its path or `cwd`" if "/" in name else "the PATH; install it, or see `python` and `env`"
            raise ValueError(f"program: there is no executable file {name!r} in {where}")
        return program

    async def _record_run(self, content: bytes, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        """Records the run of the program: its end, its tool calls and its conversation. Returns the program's answer.

        `content` is the report of the supervisor process, as JSON. Raises AgentError if the program failed.
        """
        command = shlex.join(self.program)
        try:
            report: Json = json.loads(content)
        except ValueError as error:
            raise InfraError(f"the supervisor process of `{command}` died; see whether the kernel killed it for want of memory") from error
        if "failed" in report:
            raise AgentError(f"`{command}` cannot be started: {report['failed']}")
        program = codec.received(Program, report["program"])
        tools.programs.append(program)
        sys.stderr.write(report["stderr"])
        answer = report["answer"]
        if answer is None:
            answer = report["stdout"]
        else:
            sys.stdout.write(report["stdout"])
        answer = answer.strip()
        llm.transcript = [*scenario.messages, *self._conversation(await llm.said(), answer, tools)]
        if program.exit_code:
            end = ending(report["stderr"].strip(), TAIL) or "it printed nothing to stderr"
            raise AgentError(f"`{command}` {end_text(program.exit_code)}: {end}")
        return Answer(answer)

    def _conversation(self, answers: Sequence[Json], answer: str, tools: Toolbox) -> list[Json]:
        """Returns the messages of the conversation, rebuilt from the model's `answers` and the program's final `answer`.

        Records the tool calls in `answers`, except those of `own_tools`. Their results are placeholders, because the program executes them.
        """
        messages: list[Json] = []
        for turn, each in enumerate(answers, 1):
            calls = [{**call, "id": call["id"] or f"call-{turn}-{place}"} for place, call in enumerate(each["tool_calls"])]
            written = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": object_text(call["arguments"])}}
                for call in calls
            ]
            messages.append({"role": "assistant", "content": each["text"], **({"tool_calls": written} if written else {})})
            for call in calls:
                result = "" if call["name"] in self.own_tools else tools.record(call["name"], call["arguments"], turn)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if answer and not (messages and messages[-1]["role"] == "assistant" and messages[-1]["content"].strip() == answer):
            messages.append({"role": "assistant", "content": answer})
        return messages
