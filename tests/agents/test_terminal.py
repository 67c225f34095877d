"""The agent `terminal` with bash in a folder and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.agents.terminal import SYSTEM_PROMPT, Terminal
from pytest_agentbench.errors import AgentError, ConfigError, LimitReached
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario, Task
from pytest_agentbench.tools.toolbox import Toolbox
from tests.agents.scripted import staged
from tests.sandbox.local import LocalSandbox

INSTRUCTION: Json = {"role": "user", "content": "Write hello into hello.txt."}
SCENARIO = Scenario("hello", (INSTRUCTION,), task=Task(folder="/nowhere", digest=""))

WRITE: Json = {"name": "bash", "arguments": {"command": "echo hello > hello.txt; echo written"}}
DONE: Json = {"name": "done", "arguments": {"summary": "It says hello."}}


class Played:
    """The result of an agent's work in `folder/work`."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.tools = Toolbox(())
        self.requests: list[Json] = []

    @property
    def commands(self) -> list[str]:
        return [call.arguments["command"] for call in self.tools.calls if not call.problem]

    def told(self, request: int) -> str:
        """Returns the last message of a request."""
        return str(self.requests[request]["messages"][-1]["content"])


async def play(folder: Path, answers: Sequence[Json], played: Played | None = None, **options: Any) -> Played:
    """Runs the agent with a model that gives these answers one after the other."""
    played = played or Played()
    (folder / "work").mkdir()
    async with staged(folder, answers) as stage:
        played.tools = Toolbox((), LocalSandbox(folder / "work"))
        try:
            played.answer = await Terminal(**options).run(SCENARIO, stage.llm, played.tools)
        finally:
            played.requests = stage.requests
    return played


async def test_by_tool(tmp_path: Path) -> None:
    """The model calls `bash`, gets exit code and output, and ends by calling `done`. Each command is a timed tool call."""
    played = await play(tmp_path, [{"tool_calls": [WRITE]}, {"tool_calls": [DONE]}])

    assert Answer("It says hello.") == played.answer
    assert "hello\n" == (tmp_path / "work" / "hello.txt").read_text()
    assert "[exit code 0]\nwritten\n" == played.told(1)
    (call,) = played.tools.calls
    assert ("bash", 1, 1) == (call.name, call.turn, call.user_turn)
    assert call.started_ns and call.ended_ns and call.started_ns < call.ended_ns
    first = played.requests[0]
    assert ["bash", "done"] == [tool["function"]["name"] for tool in first["tools"]]
    assert first["messages"][0]["content"].startswith(SYSTEM_PROMPT.rstrip())
    assert INSTRUCTION == first["messages"][1]


async def test_by_text(tmp_path: Path) -> None:
    """In the style `text` the model writes blocks, which run one after the other, and ends with a line that says so."""
    blocks = "First\n```bash\necho one\n```\nthen\n```bash\nls nothing\n```"
    played = await play(tmp_path, [{"text": blocks}, {"text": "TASK_COMPLETE"}], style="text")

    assert Answer("TASK_COMPLETE") == played.answer
    assert ["echo one", "ls nothing"] == played.commands
    assert played.told(1).startswith("[exit code 0]\none\n\n\n[exit code 2]\nls: cannot access 'nothing'")
    assert "tools" not in played.requests[0]
    assert "```bash" in played.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("style", "idle", "end", "words"),
    [
        ("tool", {"text": "I think it is done."}, {"tool_calls": [DONE]}, "Nothing was run. Call `bash`"),
        ("text", {"text": "I think it is done."}, {"text": "TASK_COMPLETE"}, "Nothing was run. To run commands"),
        ("tool", {"tool_calls": [{"name": "zsh", "arguments": {}}]}, {"tool_calls": [DONE]}, "Error: there is no tool 'zsh'"),
        ("tool", {"tool_calls": [{"name": "bash", "arguments": {}}]}, {"tool_calls": [DONE]}, "Error: the arguments of bash do not fit"),
    ],
)
async def test_answers_without_commands(tmp_path: Path, style: str, idle: Json, end: Json, words: str) -> None:
    """A model that neither runs anything nor ends is told so. Invalid calls are recorded as such."""
    played = await play(tmp_path, [idle, end], style=style)

    assert played.answer is not None
    assert words in played.told(1)
    assert [] == played.commands
    assert ("tool_calls" in idle) == bool([call.problem for call in played.tools.calls])


async def test_limits(tmp_path: Path) -> None:
    """A slow command is killed and the model is told. A long output loses its middle. Iterations are limited."""
    loud = {"name": "bash", "arguments": {"command": "printf 'a%.0s' {1..300}"}}
    long = {"name": "bash", "arguments": {"command": "sleep 600"}}
    played = Played()

    with pytest.raises(LimitReached, match="iterations: 3 were not enough"):
        await play(
            tmp_path, [{"tool_calls": [loud]}, {"tool_calls": [long]}], played, max_iterations=3, max_output=100, command_timeout=0.2
        )

    assert 3 == len(played.requests)
    assert f"[exit code 0]\n{'a' * 37}\n[226 bytes left out]\n{'a' * 37}" == played.told(1)
    assert "[it took longer than 0.2 s and was killed]\n(no output)" == played.told(2)


async def test_the_end_comes_first(tmp_path: Path) -> None:
    """Calls after `done` in the same answer are not carried out."""
    played = await play(tmp_path, [{"tool_calls": [DONE, WRITE]}])

    assert Answer("It says hello.") == played.answer
    assert [] == played.commands


async def test_an_empty_answer(tmp_path: Path) -> None:
    """An empty answer is an agent error."""
    with pytest.raises(AgentError, match="answer is empty"):
        await play(tmp_path, [{"text": " "}], style="text")


async def test_time_in_the_middle_of_a_command(tmp_path: Path) -> None:
    """A command that is interrupted by the agent's time limit is recorded."""
    played = Played()
    begin = {"name": "bash", "arguments": {"command": "touch begun; sleep 600"}}
    playing = asyncio.ensure_future(play(tmp_path, [{"tool_calls": [begin]}], played))
    while not (tmp_path / "work" / "begun").exists():  # noqa: ASYNC110 - another process creates the file
        await asyncio.sleep(0.01)

    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing

    assert ["touch begun; sleep 600"] == played.commands


async def test_no_task() -> None:
    """A scenario without a task is an error."""
    with pytest.raises(ConfigError, match="scenario 'plain' is not a task"):
        await Terminal().run(Scenario("plain", (INSTRUCTION,)), LLM("http://127.0.0.1:9/v1", "none"), Toolbox(()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"style": "xml"}, "style must be tool or text, not 'xml'"),
        ({"max_iterations": 0}, "max_iterations must be a whole number from 1 up"),
        ({"command_timeout": 0}, "command_timeout must be a number from 0.1 up"),
        ({"max_output": 10}, "max_output must be a whole number from 100 up"),
    ],
)
def test_options(options: Json, words: str) -> None:
    """Invalid settings are refused before anything runs."""
    with pytest.raises(ValueError, match=words):
        Terminal(**options)
