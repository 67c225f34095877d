"""Agents that are programs: their input, the record of their work, and their complete removal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import AN_AGENT, is_black_box, make_agent
from pytest_agentbench.agents.run import work
from pytest_agentbench.agents.tool_calling import ToolCalling
from pytest_agentbench.errors import AgentError, ConfigError, InfraError
from pytest_agentbench.lib.process import lives
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.source import sample_response
from pytest_agentbench.tools.toolbox import Toolbox
from tests.waits import wait_for

QUESTION: Json = {"role": "user", "content": "A lamp?"}
FIND = Tool("find", "Finds things.", {"type": "object", "properties": {"n": {"type": "integer"}}})
SCENARIO = Scenario("s-0", (QUESTION,), (FIND,), ({"tool": "find", "parameters": {"n": 1}},))


class Ran:
    """A finished run of a program."""

    def __init__(self, *said: Json) -> None:
        self.tools, self.said = Toolbox(SCENARIO.tools), list(said)
        self.llm = LLM("http://127.0.0.1:9/r/1/v1", "served", {"temperature": 0.5}, said=self._said)

    async def _said(self) -> list[Json]:
        said, self.said = self.said, []
        return said

    async def python(self, folder: Path, code: str, **options: Any) -> Answer:
        (folder / "agent.py").write_text(textwrap.dedent(code))
        agent = make_agent({"kind": "command", "program": [sys.executable, "agent.py"], **options}, folder)
        return await agent.run(SCENARIO, self.llm, self.tools)


async def printed(folder: Path, code: str, **options: Any) -> str:
    return (await Ran().python(folder, code, **options)).text


def calling(*calls: tuple[str, str], text: str = "") -> Json:
    return {"text": text, "tool_calls": [{"id": "", "name": name, "arguments": arguments} for name, arguments in calls]}


@pytest.mark.parametrize("source", ["sys.stdin", "open(os.environ['AGENTBENCH_SCENARIO'])"])
async def test_a_program_is_told_the_scenario(tmp_path: Path, source: str) -> None:
    """The program gets the model, sampling, messages and tools with sample responses, on stdin and in a file, but no label and no id."""
    told = json.loads(await printed(tmp_path, f"import os, sys; print({source}.read())"))

    tool = {"name": "find", "description": "Finds things.", "parameters": FIND.parameters, "response": sample_response(FIND)}
    assert {"model": "served", "sampling": {"temperature": 0.5}, "messages": [QUESTION], "tools": [tool]} == told


async def test_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets the user's environment and the tap's addresses.

    Test variables, proxies for loopback, and secrets that `keys` does not name are left out.
    """
    given = {"MINE": "1", "COV_CORE": "1", "PYTEST_X": "1", "MY_API_KEY": "secret", "HF_TOKEN": "secret", "SEARCH_KEY": "for the search"}
    for name, value in {**given, "OPENAI_API_KEY": "secret", "NO_PROXY": "example.org", "PYTHONPATH": "here"}.items():
        monkeypatch.setenv(name, value)

    found = json.loads(
        await printed(tmp_path, "import json, os; print(json.dumps(dict(os.environ)))", keys=["SEARCH_KEY"], env={"COLOUR": "red"})
    )

    assert "secret" not in found.values()
    expected = {
        "MINE": "1",
        "COLOUR": "red",
        "SEARCH_KEY": "for the search",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/r/1/v1",
        "OPENAI_API_KEY": "agentbench",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9/r/1",
        "ANTHROPIC_API_KEY": "agentbench",
        "AGENTBENCH_MODEL": "served",
        "NO_PROXY": "example.org,127.0.0.1,localhost",
    }
    assert expected == {name: found.get(name) for name in expected}
    assert set() == {"COV_CORE", "PYTEST_X", "PYTHONPATH"} & found.keys()


async def test_where_it_runs(tmp_path: Path) -> None:
    """The program runs in the suite's folder or in one below it."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "agent.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "inner" / "agent.sh").chmod(0o755)
    inner = make_agent({"kind": "command", "program": ["./agent.sh"], "cwd": "inner"}, tmp_path)

    assert str(tmp_path) == await printed(tmp_path, "import os; print(os.getcwd())")
    assert str(tmp_path / "inner") == (await inner.run(SCENARIO, Ran().llm, Toolbox(()))).text


async def test_an_interpreter(tmp_path: Path) -> None:
    """`python` puts the commands of an environment first in the PATH."""
    here = make_agent({"kind": "command", "program": ["python", "-c", "import sys; print(sys.prefix)"], "python": "agentbench"}, tmp_path)

    assert sys.prefix == (await here.run(SCENARIO, Ran().llm, Toolbox(()))).text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"program": ["nowhere-to-be-found"]}, "program: there is no executable file 'nowhere-to-be-found' in the PATH; install it"),
        ({"program": ["./lost.sh"]}, "program: there is no executable file './lost.sh' in "),
        ({"program": []}, "program must be a list of a program and its arguments"),
        ({"program": "python agent.py"}, "program must be a list of texts, not 'python agent.py'"),
        ({"program": ["sh", 5]}, "program must be a list of texts"),
        ({"program": ["sh"], "cwd": "lost"}, "cwd: the folder "),
        ({"program": ["sh"], "env": {"A": 5}}, "env must be names and texts"),
        ({"program": ["sh"], "python": "lost"}, "python: lost is neither an interpreter nor a virtual environment"),
        ({"program": ["sh"], "own_tools": "final_answer"}, "own_tools must be a list of texts"),
        ({}, "missing 1 required positional argument: 'program'"),
    ],
)
def test_invalid_settings(tmp_path: Path, options: Json, sentence: str) -> None:
    """A program that cannot run is an error of the suite before anything starts."""
    with pytest.raises(ConfigError) as caught:
        make_agent({"kind": "command", **options}, tmp_path)

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('Here', 'it is.\\n\\n')", "Here it is."),
        ("print()", ""),
        ("import os; open(os.environ['AGENTBENCH_ANSWER'], 'w').write('In the file\\n'); print('step 1')", "In the file"),
        ("import sys; sys.stdout.buffer.write(b'caf\\xe9')", "caf\N{REPLACEMENT CHARACTER}"),
        ("import sys; sys.stdin.close(); print('No question')", "No question"),
    ],
)
async def test_the_answer(tmp_path: Path, code: str, answer: str) -> None:
    """The answer is the program's output, or the content of the answer file."""
    assert answer == await printed(tmp_path, code)


async def test_a_program_that_prints_much(tmp_path: Path) -> None:
    """If an output or answer file is too long, half a megabyte of its beginning and its end are kept.

    The bytes between them are counted.
    """
    code = "print('begin'); [print('x' * (1 << 20)) for _ in range(5)]; print('the end')"
    file = "import os, sys; sys.stdout = open(os.environ['AGENTBENCH_ANSWER'], 'w'); "
    for text in (await printed(tmp_path, code), await printed(tmp_path, file + code)):
        head, mark, tail = text.split("\n", 2)[0], text.split("\n")[2], text.rpartition("\n")[2]

        assert ("begin", "[4,194,323 bytes left out]", "the end") == (head, mark, tail)
        assert (1 << 20) + len(f"\n{mark}\n") - 1 == len(text)


async def test_the_record_of_a_run(tmp_path: Path) -> None:
    """The record has the exit code, time and CPU of all its processes, including those that it did not wait for."""
    ran = Ran()
    burn = "import time; begun = time.process_time()\\nwhile time.process_time() < begun + 0.3: pass"
    await ran.python(tmp_path, f'import subprocess, sys; subprocess.run([sys.executable, "-c", "{burn}"]); print("done")')

    (program,) = ran.tools.programs
    assert 0 == program.exit_code
    assert 0.3 <= program.cpu_s
    assert 0 < program.started_ns < program.ended_ns
    assert 1 < program.peak_mib


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('I am lost')", "ended with exit code 1: I am lost"),
        ("raise SystemExit(3)", "ended with exit code 3: it printed nothing to stderr"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV: it printed nothing to stderr"),
    ],
)
async def test_a_program_that_fails(tmp_path: Path, code: str, reason: str) -> None:
    """A failed program is an agent error with the end of its stderr. Its calls are kept."""
    ran = Ran(calling(("find", "{}")))
    with pytest.raises(AgentError, match=r"agent\.py") as caught:
        await ran.python(tmp_path, code)

    assert reason in str(caught.value)
    assert ["find"] == [call.name for call in ran.tools.calls]
    assert 0 != ran.tools.programs[0].exit_code


async def test_tool_calls_are_read(tmp_path: Path) -> None:
    """Every tool call of the model is recorded with the number of its answer, and is in the transcript."""
    ran = Ran(calling(("find", '{"n": 1}'), ("find", '{"n": "x"}')), calling(("lose", "{}"), ("find", "{")), calling(text="Done."))
    await ran.python(tmp_path, "print('Done.')")

    assert [("find", 1, None), ("find", 1, "invalid_arguments"), ("lose", 2, "unknown_tool"), ("find", 2, "malformed_arguments")] == [
        (call.name, call.turn, call.problem) for call in ran.tools.calls
    ]
    assert {None} == {call.started_ns for call in ran.tools.calls}
    assert ["user", "assistant", "tool", "tool", "assistant", "tool", "tool", "assistant"] == [each["role"] for each in ran.llm.transcript]
    assert [QUESTION, {"role": "assistant", "content": "Done."}] == [ran.llm.transcript[0], ran.llm.transcript[-1]]
    asked = [call["id"] for message in ran.llm.transcript for call in message.get("tool_calls", ())]
    assert asked == [message["tool_call_id"] for message in ran.llm.transcript if message["role"] == "tool"]


async def test_tools_of_the_framework(tmp_path: Path) -> None:
    """Calls of the framework's own tools are in the transcript, but are not recorded as the scenario's calls. The output is the answer."""
    ran = Ran(calling(("find", "{}")), calling(("final_answer", '{"answer": "Yes."}')))
    await ran.python(tmp_path, "print('Yes.')", own_tools=["final_answer"])

    assert ["find"] == [call.name for call in ran.tools.calls]
    assert ["final_answer"] == [call["function"]["name"] for call in ran.llm.transcript[-3]["tool_calls"]]
    assert {"role": "assistant", "content": "Yes."} == ran.llm.transcript[-1]


async def test_turns_of_the_user(tmp_path: Path) -> None:
    """The program runs once for each message of the user, with the conversation so far. Its calls belong to that message."""
    (tmp_path / "agent.py").write_text("import json, sys; print(' / '.join(str(m['content']) for m in json.load(sys.stdin)['messages']))")
    agent = make_agent({"kind": "command", "program": [sys.executable, "agent.py"]}, tmp_path)
    ran = Ran(calling(("find", "{}")))
    later = replace(SCENARIO, turns=(({"role": "user", "content": "Two lamps."},),))
    answer = await work(agent, later, ran.llm, ran.tools)

    assert f"A lamp? /  / {sample_response(FIND)} / A lamp? / Two lamps." == answer.text
    assert (2, [1]) == (len(ran.tools.programs), [call.user_turn for call in ran.tools.calls])
    assert ["user", "assistant", "tool", "assistant", "user", "assistant"] == [each["role"] for each in ran.llm.transcript]


async def test_an_agent_that_wraps_a_program(tmp_path: Path) -> None:
    """A judge sees the calls of each run of the program, and the record contains every run."""
    first = Ran(calling(("find", "{}")))
    fresh = first.tools.fresh()
    kept, first.tools = first.tools, fresh
    await first.python(tmp_path, "print('Yes.')")

    assert ([], ["find"]) == (kept.calls, [call.name for call in fresh.calls])
    assert [0] == [program.exit_code for program in kept.programs]


@dataclass(frozen=True)
class Wrapping:
    """An agent that wraps another agent."""

    inner: Any = field(metadata=AN_AGENT)


def test_which_agents_are_black_boxes(tmp_path: Path) -> None:
    """A command and an agent that wraps it are black boxes, so the tap keeps the model's messages."""
    command = make_agent({"kind": "command", "program": [sys.executable]}, tmp_path)

    assert [True, True, False, False] == [
        *map(is_black_box, [command, cast("Agent", Wrapping(command)), ToolCalling(), cast("Agent", Wrapping(ToolCalling()))])
    ]


#: A program with a child in its group, a child in a session of its own, and an orphan. All of them ignore SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
pids = [os.getpid(), subprocess.Popen(wait).pid, subprocess.Popen(wait, start_new_session=True).pid]
quiet = "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
starter = f"import subprocess; print(subprocess.Popen({wait}, {quiet}).pid)"
orphan = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True)
pids.append(int(orphan.stdout))
with open("pids.part", "w") as file:
    file.write(" ".join(map(str, pids)))
os.rename("pids.part", "pids")
print("begun", flush=True)
"""
FOREVER = FAMILY + "time.sleep(600)\n"


def pids_in(folder: Path) -> list[int]:
    wait_for((folder / "pids").exists, "the program's processes")
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def assert_gone(pids: Sequence[int]) -> None:
    assert 4 == len(pids)
    wait_for(lambda: not any(map(lives, pids)), "the end of the program's processes")


async def test_a_program_that_leaves_others_behind(tmp_path: Path) -> None:
    """Processes that the program started end with it, even detached ones."""
    assert "begun" == await printed(tmp_path, FAMILY)
    assert_gone(pids_in(tmp_path))


async def test_a_budget_that_is_used_up(tmp_path: Path) -> None:
    """At the end of its time the program and all its processes are killed. Its work so far is recorded."""
    ran = Ran(calling(("find", "{}")))
    running = asyncio.create_task(ran.python(tmp_path, FOREVER))
    pids = await asyncio.to_thread(pids_in, tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert [] == [pid for pid in pids if lives(pid)]
    assert (["find"], [-signal.SIGKILL]) == ([call.name for call in ran.tools.calls], [each.exit_code for each in ran.tools.programs])


async def test_a_program_gets_sigterm_first(tmp_path: Path) -> None:
    """The program gets SIGTERM first, so that it can clean up."""
    code = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("tidy")))
        pathlib.Path("there").touch()
        time.sleep(600)
    """
    ran = Ran()
    running = asyncio.create_task(ran.python(tmp_path, code))
    await asyncio.to_thread(wait_for, (tmp_path / "there").exists, "the program")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert [0] == [each.exit_code for each in ran.tools.programs]
    assert {"role": "assistant", "content": "tidy"} == ran.llm.transcript[-1]


KILLED = """
import asyncio, sys
from pathlib import Path
from tests.agents.test_command import FOREVER, Ran
asyncio.run(Ran().python(Path(sys.argv[1]), FOREVER))
"""


def test_a_pool_that_is_killed(tmp_path: Path) -> None:
    """If the process that runs a program is killed, the program and all its processes end, too."""
    root = Path(__file__).parents[2]
    pool = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    pids = pids_in(tmp_path)
    pool.kill()
    pool.wait()

    assert_gone(pids)


async def test_a_supervisor_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the supervisor dies, the program ends, and the rollout is retried."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the killed supervisor cannot remove its temporary files
    code = """
        import os, pathlib, time
        pathlib.Path("own").write_text(str(os.getpid()))
        pathlib.Path(f"{os.getppid()}.pid").touch()
        time.sleep(600)
    """
    running = asyncio.create_task(Ran().python(tmp_path, code))
    (supervisor,) = await asyncio.to_thread(wait_for, lambda: [*tmp_path.glob("*.pid")], "the program")
    os.kill(int(supervisor.stem), signal.SIGKILL)

    with pytest.raises(InfraError, match=r"the supervisor process of .* died"):
        await running
    wait_for(lambda: not lives(int((tmp_path / "own").read_text())), "the end of the program")
