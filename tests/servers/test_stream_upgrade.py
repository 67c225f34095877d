"""A request sent upstream as a stream is answered with what the server says without one, but for what docs/stream-upgrade.md lists."""

from __future__ import annotations

import asyncio
import json

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.chat import ChatReading
from pytest_agentbench.tap.stream import EventReader, Read
from tests.servers.cases import DYNAMO, VLLM
from tests.servers.comparing import EACH_TIME_ANOTHER, chunk_fields, differences, each_time_another, is_of, named, table
from tests.servers.running import Server, ask
from tests.tap.peers import Tap

CASES = {"vllm": VLLM, "dynamo": DYNAMO}


each_server = pytest.mark.parametrize("server", CASES, indirect=True)
each_case = pytest.mark.parametrize(
    ("server", "case"),
    [pytest.param(server, case, id=f"{server}-{case}") for server, cases in CASES.items() for case in cases],
    indirect=["server"],
)


@each_case
async def test_the_same_answer(server: Server, tap: Tap, case: str) -> None:
    """Every field that differs is in the page's table, with what it is on both sides; and every row of the table is true."""
    body = CASES[server.name.partition(" ")[0].lower()][case]
    await asked(server.url, body)  # so that what follows finds the prompt in the prefix cache
    whole = json.loads(await asked(server.url, body))
    through = await tap.open(upgrade=True)
    upgraded = json.loads(await asked(tap.url(through), body))
    streamed = await asked(tap.url(through), {**body, "stream": True, "stream_options": {"include_usage": True}})
    upgraded_call, streamed_call = await tap.close(through)

    assert (True, None) == (upgraded_call.upgraded, upgraded_call.error_kind)
    assert (False, None) == (streamed_call.upgraded, streamed_call.error_kind)
    assert set() == differences(put_together(streamed), upgraded, {})
    assert {row for requests, row in table(server.name) if is_of(requests, case)} == differences(whole, upgraded, chunk_fields(streamed))


@each_server
def test_the_page_names_no_other_cases(server: Server) -> None:
    """A row whose case was renamed would not be compared any more."""
    cases = CASES[server.name.partition(" ")[0].lower()]

    assert set() == {case for requests, _ in table(server.name) for case in named(requests)} - cases.keys()


def test_the_page_names_the_fields_that_are_not_compared() -> None:
    assert each_time_another() == EACH_TIME_ANOTHER


async def asked(url: str, body: Json) -> bytes:
    return await asyncio.to_thread(ask, url + "/chat/completions", body)


def put_together(stream: bytes) -> Json:
    """The answer of a stream that an agent read itself."""
    reading = ChatReading()
    for event in EventReader().feed([Read(0, None, stream)]):
        reading.add(event)
    reading.end()
    whole: Json = json.loads(reading.assemble())
    return whole
