"""Tools of real MCP servers: a process for each rollout, and one that serves over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.factory import load_tools
from pytest_agentbench.tools.mcp_tools import ServerTools
from pytest_agentbench.tools.toolbox import Toolbox

pytestmark = pytest.mark.slow  # a server takes at least half a second to start

SERVER = '''
import os
import subprocess
import sys
import time
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop", log_level="ERROR")
stock = {"lamp": 3}

@server.tool()
def order_item(item: str, count: int = 1) -> str:
    """Orders an item."""
    if stock.get(item, 0) < count:
        raise ToolError(f"only {stock.get(item, 0)} left")
    stock[item] -= count
    print("ordered", item, file=sys.stderr, flush=True)
    return f"{stock[item]} left"

@server.tool()
def environment() -> dict[str, str]:
    """Says what it finds in its environment, and where it is."""
    return {**os.environ, "cwd": os.getcwd()}

@server.tool()
def picture() -> list:
    """Shows a lamp."""
    return ["a lamp", Image(data=b"x", format="png")]

@server.tool()
def leave() -> str:
    """Leaves."""
    print("I leave", file=sys.stderr, flush=True)
    os._exit(3)

@server.tool()
def sleep() -> str:
    """Sleeps, and has somebody else sleep, too."""
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("processes", os.getpid(), other.pid, file=sys.stderr, flush=True)
    time.sleep(600)
    return ""

if __name__ == "__main__":
    if sys.argv[1:]:
        import socket
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        listening.close()
        print(port, flush=True)
        server.run("streamable-http", port=port)
    else:
        server.run()
'''

PYTHON: Json = {"kind": "mcp", "command": ["python", "server.py"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A suite's folder with a server."""
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """The URL of a running server."""
    with subprocess.Popen([sys.executable, "server.py", "http"], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(600):  # the server takes a second to import its modules
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


@asynccontextmanager
async def opened(folder: Path, settings: Json = PYTHON) -> Any:
    """The toolbox of one rollout."""
    tools = load_tools(settings, folder, ())
    scenario = tools.for_scenario(Scenario("s-0", ()))
    async with tools.opened(scenario) as source:
        yield Toolbox(scenario.tools, source=source)


async def test_the_servers_tools(folder: Path) -> None:
    """Names, descriptions and schemas are the server's."""
    async with opened(folder) as tools:
        schemas = {each["function"]["name"]: each["function"] for each in tools.schemas}

    assert ["order_item", "environment", "picture", "leave", "sleep"] == [*schemas]
    assert "Orders an item." == schemas["order_item"]["description"]
    assert ["item"] == schemas["order_item"]["parameters"]["required"]
    assert ["item", "count"] == [*schemas["order_item"]["parameters"]["properties"]]


async def test_a_process_for_each_rollout(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each rollout has its own server, whose refusals are answers, and whose stderr goes to the rollout's log."""
    for _ in range(2):
        async with opened(folder) as tools:
            assert "1 left" == await tools.call("order_item", '{"item": "lamp", "count": 2}', 1)
            assert "only 1 left" in await tools.call("order_item", '{"item": "lamp", "count": 2}', 1)
            tools.settle()

        assert [("", None), (True, None)] == [(bool(call.refusal) or "", call.problem) for call in tools.calls]
    assert ["ordered lamp"] * 2 == capfd.readouterr().err.splitlines()


async def test_content_that_is_not_text(folder: Path) -> None:
    """The model gets texts, and only the names of other content."""
    async with opened(folder) as tools:
        assert "a lamp\n[image, image/png, which is no text]" == await tools.call("picture", "{}", 1)


async def test_what_a_server_gets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server only gets the environment variables that the suite names. It runs in the suite's folder."""
    monkeypatch.setenv("CANARY_API_KEY", "canary-4711-canary")
    monkeypatch.setenv("SHOP_API_KEY", "shop-4711-shop")
    async with opened(folder, {**PYTHON, "env": {"COLOUR": "red", "LC_ALL": "C.UTF-8"}, "keys": ["SHOP_API_KEY"]}) as tools:
        said = await tools.source.call(tools.tools["environment"], {})

    given = {"SHOP_API_KEY": "shop-4711-shop", "COLOUR": "red", "LC_ALL": "C.UTF-8", "cwd": str(folder)}
    assert given == json.loads(said)


async def test_a_server_that_dies(folder: Path) -> None:
    """The error says how the server ended and what it printed last. It fails the rollout, even if the agent catches it."""
    async with opened(folder) as tools:
        for _ in range(2):
            with pytest.raises(InfraError):
                await tools.call("leave", "{}", 1)
        with pytest.raises(InfraError) as caught:
            tools.settle()

    assert "tools: the MCP server `python server.py` ended with exit code 3; its last lines: I leave" == str(caught.value)


async def test_a_server_that_does_not_answer(folder: Path) -> None:
    """A late answer is an error of the tools. The server's processes are all ended, also if the rollout is cancelled."""
    async with opened(folder) as tools:
        tools.source._server = dataclasses.replace(tools.source._server, timeout=1)  # changed after the start, which may take longer
        with pytest.raises(
            InfraError, match=r"has not answered a call of 'sleep' within 1 s; its last lines: processes \d+ \d+$"
        ) as caught:
            await tools.call("sleep", "{}", 1)

    assert [False, False] == [psutil.pid_exists(int(pid)) for pid in str(caught.value).split()[-2:]]


async def test_a_rollout_that_is_cancelled(folder: Path) -> None:
    """If the rollout is cancelled, the server and all its processes end."""

    async def rollout() -> None:
        async with opened(folder) as tools:
            process.append(tools.source._process)
            await tools.call("sleep", "{}", 1)

    process: list[Any] = []
    task = asyncio.create_task(rollout())
    while not process or "processes" not in process[0].last_lines:  # noqa: ASYNC110 - output of the server sets no event
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [False, False] == [psutil.pid_exists(int(pid)) for pid in process[0].last_lines.split()[-2:]]


def test_a_pool_that_is_killed(folder: Path) -> None:
    """If the process that started the server is killed, the server ends, too."""
    code = f"""
import asyncio
from pathlib import Path
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.factory import load_tools
from pytest_agentbench.tools.mcp_tools import ServerTools

async def main():
    tools = load_tools({PYTHON!r}, Path({str(folder)!r}), ())
    async with tools.opened(Scenario("s", ())) as source:
        call = asyncio.create_task(source.call(tools.tools["sleep"], {{}}))
        while "processes" not in source._process.last_lines:
            await asyncio.sleep(0.05)
        print(source._process.last_lines, flush=True)
        await call
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as pool:
        assert pool.stdout is not None
        pids = [int(pid) for pid in pool.stdout.readline().split()[1:]]
        assert 2 == len(pids)
        os.kill(pool.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 30)

    assert [] == alive


async def test_http(folder: Path, url: str) -> None:
    """The tools of a running server are requested and called in the same way. All rollouts share the server."""
    for left in ("2 left", "1 left"):
        async with opened(folder, {"kind": "mcp", "url": url}) as tools:
            assert left == await tools.call("order_item", '{"item": "lamp"}', 1)
            assert "only" in await tools.call("order_item", '{"item": "lamp", "count": 5}', 1)
            tools.settle()


async def test_http_server_that_was_stopped(folder: Path, url: str) -> None:
    """A server that was stopped is an error of the tools, in one sentence."""
    async with opened(folder, {"kind": "mcp", "url": url}) as tools:
        with pytest.raises(InfraError, match=rf"^tools: the MCP server `{url}` has failed: "):
            await tools.call("leave", "{}", 1)
        with pytest.raises(InfraError):
            tools.settle()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, r"an MCP server needs either a command or a url, for example {kind: mcp, command: \[python, server.py\]}"),
        ({"command": ["python"], "url": "http://127.0.0.1:1"}, "an MCP server needs either a command or a url, .*"),
        ({"url": "127.0.0.1:1"}, "url must be that of an MCP server, such as http://127.0.0.1:8000/mcp, not '127.0.0.1:1'"),
        ({"url": "http://127.0.0.1:1", "keys": ["A"]}, "env and keys need a command; .*"),
        ({"command": "server.py"}, "command must be a list of texts, not 'server.py'"),
        ({"command": ["python"], "timeout": 0}, "timeout must be a number from 0.1 up, not 0"),
        ({"command": ["pyton"]}, "there is no program 'pyton' in the PATH; install it, or correct `command`"),
        ({"command": ["./server"]}, "there is no program './server' in .*"),
        ({"command": ["python"], "keys": ["GONE_KEY"]}, "keys: the environment variable GONE_KEY, which .* should get, is not set"),
        ({"command": ["python", "gone.py"]}, "the MCP server `python gone.py` ended with exit code 2; its last lines: .*gone.py.*"),
        (
            {"command": ["sleep", "600"], "timeout": 0.5},
            "the MCP server `sleep 600` has not answered the initialize request within 0.5 s \\(timeout\\); .*",
        ),
        ({"url": "http://127.0.0.1:1/mcp"}, "the MCP server `http://127.0.0.1:1/mcp` does not serve: .*"),
    ],
)
def test_servers_that_cannot_be_used(folder: Path, given: Json, sentence: str) -> None:
    """The error says in one sentence what is wrong, and what would work."""
    with pytest.raises(ConfigError, match=f"^tools: {sentence}$"):
        load_tools({"kind": "mcp", **given}, folder, ())


def test_a_server_that_prints_its_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of the server are redacted in its last output."""
    monkeypatch.setenv("SHOP", "shop-4711-shop")
    (folder / "server.py").write_text("import os, sys\nsys.exit('no ' + os.environ['SHOP'])\n")
    with pytest.raises(ConfigError, match=r"ended with exit code 1; its last lines: no \[redacted\]$"):
        load_tools({**PYTHON, "keys": ["SHOP"]}, folder, ())


def test_the_datas_tools_and_the_servers_agree(folder: Path) -> None:
    """If the data contain tools, the model sees these. A tool that differs from the server's is refused."""
    fits = Tool("order_item", "", {"type": "object", "properties": {"item": {}, "count": {}}, "required": ["item"]})
    scenario = Scenario("s-0", (), (fits,))
    tools = load_tools(PYTHON, folder, [scenario])
    assert scenario is tools.for_scenario(scenario)
    assert isinstance(tools, ServerTools)
    for other, sentence in (
        (
            Scenario("s", (), (Tool("ask", "", {}),)),
            "the data list a tool that does not exist: no tool 'ask'; known: environment, leave, order_item, picture, sleep",
        ),
        (
            Scenario("s", (), (Tool("leave", "", {"properties": {"x": {}}}),)),
            "the tool 'leave' takes (), and in the data it takes (x=...); they should agree",
        ),
        (Scenario("s", (), expected=({"tool": "orde_item"},)), "s: an expected call: no tool 'orde_item' (did you mean 'order_item'?)"),
    ):
        with pytest.raises(ConfigError) as caught:
            tools.check([other])
        assert str(caught.value).startswith(f"the MCP server `python server.py`: {sentence}")
    with pytest.raises(
        ConfigError,
        match=r"^tools: the MCP server `python server.py`: the data list a tool that does not exist: no tool 'ask'; known: environment, ",
    ):
        load_tools(PYTHON, folder, [Scenario("s", (), (Tool("ask", "", {}),))])
