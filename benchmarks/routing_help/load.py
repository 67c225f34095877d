"""The load of the comparison: synthetic sessions that begin at given times, and a block of them before one router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import aiohttp

from benchmarks.measurement import BenchmarkError
from benchmarks.routing_help.engines import ANSWER, FOURTH, MODEL, RESERVE, Condition, counts, reset
from benchmarks.routing_help.routers import Router
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.suites.suite import Scenario

SUITE = Path(__file__).parents[2] / "scenarios" / "sessions"
SESSIONS = 16
CALLS = (5, 8)
THINK_S = 0.1  # mean pause between an answer and the next call, seconds
ARRIVAL_S = 2.0  # time in which the sessions of a block begin, seconds
LEAVES_AT, JOINS_AT = 1.2, 2.2  # seconds after the beginning of a block
SHORT_CALLS = 21  # of each router, which measure the time that it needs for itself
CALL_LIMIT = 60.0  # time limit of a call, seconds


@dataclass(frozen=True)
class Session:
    """A session that has ended."""

    name: str
    began: float  # seconds, time.monotonic()
    seconds: float  # from the beginning to the last answer
    calls: int
    failed: int  # calls without an answer


@dataclass(frozen=True)
class Block:
    """All sessions of one round before one router."""

    sessions: tuple[Session, ...]
    hit_ratio: float  # share of the prompt tokens that were cached, 0 to 1
    at_fourth: float  # share of the prompt tokens that the fourth engine got, 0 to 1


@dataclass(frozen=True)
class Round:
    """The sessions that each router gets once, and the times at which they begin."""

    sessions: Sequence[Scenario]
    starts: Sequence[float]  # seconds after the beginning of a block


def make_round(number: int) -> Round:
    """Returns the sessions of a round. Rounds share no text, so no router remembers an earlier one's prompts."""
    load = load_object("dataset format", "./sessions.py:load", {}, SUITE)
    sessions = load(SUITE / "words.txt", sessions=SESSIONS, calls=CALLS, answer_tokens=ANSWER, think_s=THINK_S, seed=1000 + number)
    random = Random(number)
    return Round(sessions, sorted(random.uniform(0, ARRIVAL_S) for _ in sessions))


async def run_block(round_: Round, condition: Condition, router: Router, urls: Sequence[str], label: str) -> Block:
    """Runs all sessions of a round before a router, with cold caches."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=CALL_LIMIT)
    ) as http:
        await reset(http, urls)
        before = await counts(http, urls)
        began = time.monotonic()
        changes = asyncio.create_task(_change(router)) if condition.is_changing else None
        sessions = await asyncio.gather(
            *(
                _session(http, router.url, each, f"{label}-{each.id}", began + start)
                for each, start in zip(round_.sessions, round_.starts, strict=True)
            )
        )
        if changes:
            await changes
            await router.restore()
        after = await counts(http, urls)
    asked = [new.asked - old.asked for new, old in zip(after, before, strict=True)]
    cached = sum(new.cached - old.cached for new, old in zip(after, before, strict=True))
    return Block(tuple(sessions), cached / sum(asked), asked[FOURTH] / sum(asked))


async def delays(urls: Mapping[str, str], engine: str) -> dict[str, float]:
    """Returns how many milliseconds a short call takes longer through each router than at an engine: medians of calls that alternate."""
    times: dict[str, list[float]] = {name: [] for name in ("", *urls)}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        for number in range(SHORT_CALLS):
            for name, url in {"": engine, **urls}.items():
                headers = {"x-session-id": f"short-{number}", "x-smg-routing-key": f"short-{number}"}
                began = time.monotonic()
                if not await _is_answered(http, url, [{"role": "user", "content": "Hello"}], headers, 1):
                    raise BenchmarkError(f"{url}: a short call was not answered")
                times[name].append((time.monotonic() - began) * 1000)
    alone = median(times.pop(""))
    return {name: median(each) - alone for name, each in times.items()}


async def _change(router: Router) -> None:
    await asyncio.sleep(LEAVES_AT)
    await router.leave(FOURTH)
    await asyncio.sleep(JOINS_AT - LEAVES_AT)
    await router.join(RESERVE)


async def _session(http: aiohttp.ClientSession, url: str, plan: Scenario, name: str, start: float) -> Session:
    await asyncio.sleep(start - time.monotonic())
    later = plan.metadata["later"]
    # Each router gets the session's id and hints in the headers that it reads. Routers without hints ignore them.
    headers = {
        "x-session-id": name,
        "x-smg-routing-key": name,
        "x-prefix-total-requests": str(len(later) + 1),
        "x-prefix-osl": str(ANSWER),
        "x-prefix-iat": str(round(THINK_S * 1000)),
    }
    messages = [*plan.messages]
    began, failed = time.monotonic(), 0
    for turn in (None, *later):
        if turn:
            messages += [{"role": "assistant", "content": turn["answer"]}, {"role": "user", "content": turn["message"]}]
            await asyncio.sleep(turn["think_s"])
        failed += not await _is_answered(http, url, messages, headers)
    return Session(plan.id, began, time.monotonic() - began, 1 + len(later), failed)


async def _is_answered(
    http: aiohttp.ClientSession, url: str, messages: Sequence[object], headers: dict[str, str], tokens: int = ANSWER
) -> bool:
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens}
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            return answer.status == 200 and bool((await answer.json())["choices"])
    except (aiohttp.ClientError, TimeoutError):
        return False
