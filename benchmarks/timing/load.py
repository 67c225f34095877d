"""`python -m benchmarks.timing.load`: a process with agents that call through the tap and time their calls.

It reads its task as a line of JSON from stdin and writes a line when it is ready. It starts at the next line on stdin. At the end it
writes the times of its calls as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import aiohttp

from pytest_agentbench.llm.client import LLM

if TYPE_CHECKING:
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

#: Monotonic nanoseconds: the call began, its first output was seen (None for an answer that comes as a whole), it ended.
Times = tuple[int, int | None, int]
Agent = Callable[[str], Awaitable[Times]]  # makes one call, with the given model

MESSAGES = [
    {"role": "system", "content": "You help a customer. " + "Use the tools for everything the customer asks for. " * 40},
    {"role": "user", "content": "How are you?"},
]
WARM_UP = "truth/ttft=20,itl=5,tokens=2,key=warm-up"
TWIN = "truth/ttft=10,itl=2,tokens=8,tail=0"  # schedule of the calls whose durations are compared
PAUSE = 0.15  # seconds between two pairs of them, which are to be few beside the streams


async def main() -> None:
    spec = json.loads(sys.stdin.readline())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        if spec["client"] == "twins":
            await twins(session, **spec["twins"])
        else:
            await streams([CLIENTS[spec["client"]](url, session) for url in spec["urls"]], spec["rounds"], spec["schedule"])


async def streams(agents: list[Agent], rounds: int, schedule: str) -> None:
    """Lets each agent make `rounds` calls, one after the other, all agents at the same time. Prints the times of the calls."""
    times: dict[str, Times] = {}

    async def stream(number: int, call: Agent) -> None:
        for round in range(rounds):
            key = f"{number}.{round}"
            times[key] = await call(f"truth/{schedule},key={key}")

    await asyncio.gather(*(call(WARM_UP) for call in agents))
    say({})
    await told()
    await asyncio.gather(*(stream(number, call) for number, call in enumerate(agents)))
    say({"times": times})


async def twins(session: aiohttp.ClientSession, straight: str, tapped: str) -> None:
    """Makes pairs of equal calls, one directly to the server and one through the tap, until the next line on stdin. Prints durations."""
    addresses = {"straight": straight, "tapped": tapped}
    durations: dict[str, dict[str, int]] = {way: {} for way in addresses}

    async def call(way: str, key: str) -> int:
        began = time.monotonic_ns()
        body = {"model": f"{TWIN},key={key}", "messages": MESSAGES}
        async with session.post(f"{addresses[way]}/chat/completions", json=body) as answer:
            answer.raise_for_status()
            await answer.read()
        return time.monotonic_ns() - began

    for way in addresses:
        await call(way, "warm-up")
    say({})
    await told()
    end = asyncio.ensure_future(told())
    number = 0
    while not end.done() or not number:
        for way in sorted(addresses, reverse=bool(number % 2)):
            durations[way][f"twin-{number}"] = await call(way, f"twin-{number}-{way}")
        number += 1
        await asyncio.sleep(PAUSE)
    say(durations)


def whole(url: str, session: aiohttp.ClientSession) -> Agent:
    """Returns an agent that waits for complete answers, with the client of this package."""
    llm = LLM(url, "truth/", session=session)

    async def call(model: str) -> Times:
        began = time.monotonic_ns()
        await llm.chat(MESSAGES, model=model)
        return began, None, time.monotonic_ns()

    return call


def sdk(url: str, session: aiohttp.ClientSession) -> Agent:
    """Returns an agent that streams with the openai package, which makes its own connections."""
    client = LLM(url, "truth/").openai()

    async def call(model: str) -> Times:
        began, first = time.monotonic_ns(), None
        messages: Any = MESSAGES
        answer = await client.chat.completions.create(model=model, messages=messages, stream=True, stream_options={"include_usage": True})
        async for chunk in answer:
            if first is None and any(says_something(choice.delta) for choice in chunk.choices):
                first = time.monotonic_ns()
        return began, first, time.monotonic_ns()

    return call


CLIENTS: dict[str, Callable[[str, aiohttp.ClientSession], Agent]] = {"sdk": sdk, "whole": whole}


def says_something(delta: ChoiceDelta) -> bool:
    return bool(delta.content or delta.tool_calls or getattr(delta, "reasoning_content", None))


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


async def told() -> None:
    """Waits for the next line on stdin."""
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
