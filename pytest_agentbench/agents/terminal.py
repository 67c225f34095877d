"""The agent `terminal`, whose model works in a sandbox with bash commands. Also contains `Shell`, which other agents use, too."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from pytest_agentbench.agents.factory import A_PROMPT
from pytest_agentbench.agents.react import without_thoughts
from pytest_agentbench.agents.run import ask
from pytest_agentbench.errors import AgentError, ConfigError, LimitReached
from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.lib.options import check_options, number, one_of, whole
from pytest_agentbench.llm.client import LLM, RequestedCall
from pytest_agentbench.records import Answer, Json, ToolCall
from pytest_agentbench.sandbox.sandbox import CommandResult, Sandbox
from pytest_agentbench.suites.suite import Scenario, Task, Tool
from pytest_agentbench.tools.toolbox import Toolbox

BASH = "bash"  # Name of the tool calls
A_DAY = 86400.0  # Seconds; the rollout has its own, shorter time limit


@dataclass(frozen=True)
class Shell:
    """Runs commands in the sandbox of one rollout's task, and records them as tool calls."""

    task: Task
    sandbox: Sandbox
    tools: Toolbox

    @classmethod
    def of(cls, scenario: Scenario, tools: Toolbox) -> Shell:
        """Returns the shell for a scenario. Raises ConfigError if the scenario is not a task."""
        if scenario.task is None or tools.sandbox is None:
            raise ConfigError(f"scenario {scenario.id!r} is not a task, so it has no sandbox; use a data set of tasks, or another agent")
        return cls(scenario.task, tools.sandbox, tools)

    async def run(self, command: str, turn: int, *, seconds: float = A_DAY, env: Mapping[str, str] | None = None) -> CommandResult:
        """Runs a command as the agent's user in a new shell, and records it, even if the agent's time ends during the command."""
        started = time.monotonic_ns()
        try:
            return await self.sandbox.exec(command, seconds=seconds, user=self.task.agent_user, workdir=self.task.workdir, env=env)
        finally:
            ended = time.monotonic_ns()
            self.record(ToolCall(BASH, {"command": command}, turn, started_ns=started, ended_ns=ended))

    def record(self, call: ToolCall) -> None:
        self.tools.add(dataclasses.replace(call, user_turn=self.tools.user_turn))


DONE = "TASK_COMPLETE"

#: A block ends with as many backticks as it begins with, so a block with more backticks can contain one with fewer.
_OPENING = re.compile(r"^[ \t]*(?P<fence>`{3,})[ \t]*(?:bash|sh|shell)[ \t]*\r?\n", re.MULTILINE | re.IGNORECASE)
_CLOSING = re.compile(r"^[ \t]*(?P<fence>`{3,})[ \t]*\r?$", re.MULTILINE)
_DONE = re.compile(rf"^[ \t>*`]*{DONE}[ \t*`.]*\r?$", re.MULTILINE)


class FencedAnswer(NamedTuple):
    """The parsed answer of a model that writes its commands in fenced blocks (`style: text`).

    An invalid answer has no commands and is not done.
    """

    commands: tuple[str, ...]  # contents of its blocks of commands
    done: bool  # whether it says that the task is done


def read_fenced_answer(text: str) -> FencedAnswer:
    """Parses an answer that has its commands in fenced blocks. Ignores an initial `<think>` block.

    An answer with commands is never done, even if it says so.
    """
    text = without_thoughts(text)
    commands = tuple(block.strip("\r\n") for block in _blocks(text) if block.strip())
    return FencedAnswer(commands, not commands and bool(_DONE.search(text)))


def _blocks(text: str) -> Iterator[str]:
    """Yields the contents of each fenced block of commands that is closed.

    If no closing fence of some length was found, later fences of that length are skipped, so that many unclosed blocks cost little time.
    """
    place, unclosed = 0, set[str]()
    while opening := _OPENING.search(text, place):
        place, fence = opening.end(), opening["fence"]
        closing = None
        if fence not in unclosed:
            closing = next((each for each in _CLOSING.finditer(text, place) if each["fence"] == fence), None)
        if closing is None:
            unclosed.add(fence)
        else:
            yield text[place : closing.start()]
            place = closing.end()


SYSTEM_PROMPT = """\
You solve a task in a Linux sandbox, by commands for bash. You are alone with it: nobody answers questions, and nobody else does anything.
Each command runs in a new shell, so put `cd` and variables into the command that needs them; files stay. A command has to end by itself:
start a server in the background, and use nothing that waits for a keyboard. You see the output of each command, without its middle where
it is long. Look before you change something, and check what you have done before you say that you are done."""

#: Appended to the system prompt in the style `tool`.
BY_TOOL = f"Call `{BASH}` to run a command, and `done` when the task is solved."

#: Appended to the system prompt in the style `text`.
BY_TEXT = f"""\
To run commands, answer with a block of them:

```bash
ls -la
```

When the task is solved, answer without a block, with a line that is {DONE}."""

STYLES = {"tool": BY_TOOL, "text": BY_TEXT}

TOOLS = (
    Tool(
        BASH,
        "Runs a command in the sandbox by `bash -c`, and says its exit code and its output.",
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False},
    ),
    Tool(
        "done",
        "Says that the task is solved. Nothing can be done after it.",
        {"type": "object", "properties": {"summary": {"type": "string", "description": "what was done, in a sentence"}}},
    ),
)

Style = Annotated[str, one_of(STYLES)]


@dataclass(frozen=True)
class Terminal:
    """The agent `terminal`: lets a model run commands until it says that the task is done. Options: docs/reference/agent-options.md."""

    # With `tool`, the model calls the tools `bash` and `done`. With `text`, it writes blocks of commands, for models without a tool
    # parser.
    style: Style = "tool"
    system_prompt: str = field(default=SYSTEM_PROMPT, metadata=A_PROMPT)  # The system message. The rules of the style are appended.
    # Largest number of the model's answers; after them the status is `limit`, and the work is verified.
    max_iterations: Annotated[int, whole(1)] = 10
    command_timeout: Annotated[float, number(0.1)] = 120.0  # Seconds after which a command is killed. The model is told.
    # Largest size of a command's output in bytes. The model gets the beginning and the end of a larger one.
    max_output: Annotated[int, whole(100)] = 10_000

    needs_task: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        shell = Shell.of(scenario, tools)
        system = f"{self.system_prompt.rstrip()}\n\n{STYLES[self.style]}"
        messages: list[Json] = [{"role": "system", "content": system}, *scenario.messages]
        step = self._by_tool if self.style == "tool" else self._by_text
        for turn in range(1, self.max_iterations + 1):
            answer = await step(shell, llm, messages, turn)
            llm.transcript = messages
            if answer is not None:
                return answer
        raise LimitReached(f"iterations: {self.max_iterations} were not enough (max_iterations)")

    async def _by_tool(self, shell: Shell, llm: LLM, messages: list[Json], turn: int) -> Answer | None:
        """Requests an answer and carries out its tool calls. Returns the agent's answer if the model called `done`, else None."""
        own = Toolbox(TOOLS)
        reply = await ask(llm, messages, own.schemas)
        if reply.is_empty:
            raise AgentError("the model's answer is empty: no text and no tool call")
        messages.append(reply.message)
        if not reply.tool_calls:
            messages.append({"role": "user", "content": f"Nothing was run. {BY_TOOL}"})
        for call in reply.tool_calls:
            understood = own.parse_call(call.name, call.arguments, turn)
            if understood.problem:
                shell.record(understood)
                messages.append(_result(call, f"Error: {understood.detail}"))
            elif understood.name == BASH:
                messages.append(_result(call, await self._output(shell, understood.arguments["command"], turn)))
            else:
                messages.append(_result(call, "The task is closed."))
                return Answer(str(understood.arguments.get("summary") or reply.text))
        return None

    async def _by_text(self, shell: Shell, llm: LLM, messages: list[Json], turn: int) -> Answer | None:
        """Requests an answer and runs its blocks of commands in order. Returns the agent's answer if the task is done, else None."""
        reply = await ask(llm, messages)
        if reply.is_empty:
            raise AgentError("the model's answer is empty")
        messages.append(reply.message)
        fenced = read_fenced_answer(reply.text)
        if fenced.done:
            return Answer(reply.text)
        outputs = [await self._output(shell, command, turn) for command in fenced.commands]
        messages.append({"role": "user", "content": "\n\n".join(outputs) or f"Nothing was run. {BY_TEXT}"})
        return None

    async def _output(self, shell: Shell, command: str, turn: int) -> str:
        """Runs a command and returns the text for the model: exit code and output."""
        done = await shell.run(command, turn, seconds=self.command_timeout)
        return f"{self._end(done)}\n{cut(done.output, self.max_output) or '(no output)'}"

    def _end(self, done: CommandResult) -> str:
        if done.exit_code is None:
            return f"[it took longer than {self.command_timeout:g} s and was killed]"
        return f"[exit code {done.exit_code}]"


def _result(call: RequestedCall, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call.id, "content": text}
