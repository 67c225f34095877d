"""The tap's process: how it starts and ends, and how many calls it can handle."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import Budgets, TapListening
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import CHAT, LAST_CHUNK, STREAM_HEAD, STREAMED, Tap, agent, backend, chunk, event, read_message, request, text_of


async def opened(child: Child) -> Tap:
    ports = child.ready(TapListening)
    return Tap(child, ports, await TapControl.connect(ports.control_port, TOKEN))


@pytest.mark.parametrize("how", ["stdin", "SIGTERM"])
async def test_the_end_with_calls_in_flight(start_tap: StartTap, how: str) -> None:
    """When the controller ends, or tells it to, the tap exits at once with code 0 and an empty log, even with calls in flight."""
    child = start_tap(token=TOKEN)
    tap = await opened(child)
    id = await tap.open()
    heard = 0
    all_heard, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await read_message(reader)
        writer.write(STREAM_HEAD + chunk(event({"content": "x"})))
        heard += 1
        if heard == 3:
            all_heard.set()
        await reader.read()
        left.set()

    async with backend(handle) as url, agent(tap.port) as one, agent(tap.port) as two, agent(tap.port) as three, agent(tap.port):
        await tap.point_at(url)
        for each, body in ((one, STREAMED), (two, None), (three, STREAMED)):
            await each.send(request(id, body=body) * 2)
        await three.reader.readuntil(b"\r\n\r\n")
        await all_heard.wait()
        if how == "stdin":
            assert child.process.stdin is not None
            child.process.stdin.close()
        else:
            child.process.send_signal(signal.SIGTERM)
        assert b"" == await two.rest()
        await asyncio.wait_for(left.wait(), 20)
        code = await asyncio.to_thread(child.process.wait, 20)
    tap.control.close()

    assert (0, "") == (code, child.log.read_text())


async def test_ctrl_c_is_not_for_the_tap(start_tap: StartTap) -> None:
    """An interrupt of the process group does not end the tap. The controller ends it later."""
    child = start_tap(token=TOKEN)
    tap = await opened(child)
    child.process.send_signal(signal.SIGINT)
    assert 0 == await tap.in_flight()
    tap.control.close()
    child.stop()

    assert (0, "") == (child.process.returncode, child.log.read_text())


def with_budgets(**budgets: object) -> bytes:
    return json.dumps({"token": TOKEN, "budgets": {**codec.plain(Budgets()), **budgets}, "port": 0}).encode()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (b"", b"Expecting value"),
        (b"\n", b"Expecting value"),
        (b"nonsense\n", b"Expecting value"),
        (b"\xff\n", b"'utf-8' codec"),
        (b"[]\n", b"it is a list, not an object"),
        (b"{}\n", b"token is missing"),
        (b'{"token": 5}\n', b"token is a whole number, not a text"),
        (with_budgets(call="long"), b"budgets.call is a text, not a number"),
        (with_budgets(reply=5), b"budgets.reply is unknown"),
    ],
)
def test_an_invalid_config(config: bytes, reason: bytes) -> None:
    """An invalid config leads to one sentence and exit code 2."""
    ended = subprocess.run([sys.executable, "-m", "pytest_agentbench.tap"], input=config, capture_output=True, timeout=60, check=False)

    assert (2, b"", 1) == (ended.returncode, ended.stdout, ended.stderr.count(b"\n"))
    assert ended.stderr.startswith(b"tap config: stdin must begin with the config as a line of JSON: " + reason)


def test_its_imports() -> None:
    """The tap imports no client library and no framework, so it starts quickly."""
    code = "import sys, pytest_agentbench.tap.__main__; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"aiohttp", "httpx", "requests", "pydantic", "openai", "yaml", "pytest"} & set(modules)


@contextmanager
def descriptors(soft: int) -> Iterator[None]:
    """Sets another soft limit of open files, which child processes inherit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 5000, reason="needs 5,000 file descriptors: ulimit -Hn")
async def test_a_thousand_streams(start_tap: StartTap) -> None:
    """A thousand streams run at the same time and are all recorded, even if the limit of file descriptors is low at first."""
    count, waiting = 1000, 0
    everyone = asyncio.Event()
    with descriptors(256):
        tap = await opened(start_tap(token=TOKEN))
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        number = (await read_message(reader)).json["user"]
        writer.write(STREAM_HEAD + chunk(event({"role": "assistant", "content": number})))
        waiting += 1
        if waiting == count:
            everyone.set()
        await everyone.wait()
        writer.write(chunk(event({"content": "!"}, "stop")) + LAST_CHUNK)

    async def ask(number: int) -> bool:
        body = json.dumps({**CHAT, "user": str(number), "stream": bool(number % 2)}).encode()
        async with agent(tap.port) as caller:
            answer = await caller.ask(request(id, body=body))
        if number % 2:
            return f'"content": "{number}"' in answer.body.decode()
        return text_of(answer) == f"{number}!"

    with descriptors(5000):
        async with backend(handle, backlog=count) as url:
            await tap.point_at(url)
            right = await asyncio.gather(*map(ask, range(count)))
    calls = await tap.close(id)
    tap.control.close()

    assert [True] * count == right
    assert {None} == {call.error_kind for call in calls}
    assert (count, count // 2) == (len(calls), sum(call.streamed for call in calls))
    assert "" == tap.child.log.read_text()
