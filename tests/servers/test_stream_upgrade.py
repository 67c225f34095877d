"""A request that the tap sends as a stream gets the answer of a whole one, except for the fields in docs/backends/stream-upgrade.md."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.stream import EventReader, NetworkRead
from tests.servers.answer_differences import EACH_TIME_ANOTHER, chunk_fields, differences, each_time_another, is_of, named, table
from tests.servers.cases import CASES, ROUTES
from tests.servers.real_server import Server, ask
from tests.tap.peers import Tap

each_api = pytest.mark.parametrize(
    ("server", "api"), [pytest.param(server, api, id=f"{server}-{api}") for server in CASES for api in ROUTES], indirect=["server"]
)
each_case = pytest.mark.parametrize(
    ("server", "api", "case"),
    [
        pytest.param(server, api, case, id=f"{server}-{api}-{case}")
        for server, apis in CASES.items()
        for api, cases in apis.items()
        for case in cases
    ],
    indirect=["server"],
)


@each_case
async def test_the_same_answer(server: Server, tap: Tap, api: str, case: str) -> None:
    """Every field that differs is in the table of the page with its values, and every row of the table is true."""
    body, route = cases_of(server, api)[case], ROUTES[api]
    as_stream = DIALECTS[route].as_stream(body)
    assert as_stream
    await asked(server.url + route, body)  # so that the next requests find the prompt in the prefix cache
    whole = json.loads(await asked(server.url + route, body))
    through = await tap.open(upgrade=True)
    upgraded = json.loads(await asked(tap.url(through) + route, body))
    streamed = await asked(tap.url(through) + route, json.loads(as_stream))
    upgraded_call, streamed_call = await tap.close(through)

    assert (True, None) == (upgraded_call.upgraded, upgraded_call.error_kind)
    assert (False, None) == (streamed_call.upgraded, streamed_call.error_kind)
    assert set() == differences(put_together(route, streamed), upgraded, {})
    expected = {row for requests, row in table(f"{server.name}, {api}") if is_of(requests, case)}
    assert expected == differences(whole, upgraded, chunk_fields(streamed))


@each_api
def test_the_page_names_no_other_cases(server: Server, api: str) -> None:
    """The page names only existing cases. A row whose case was renamed would not be compared any more."""
    rows = table(f"{server.name}, {api}")

    assert set() == {case for requests, _ in rows for case in named(requests)} - cases_of(server, api).keys()


@pytest.mark.parametrize("server", ["dynamo thunderagent"], indirect=True)
def test_dynamo_without_messages(server: Server) -> None:
    """A frontend that was not started with Messages answers 404 at their path."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(server.url + "/messages", b"{}", timeout=60)

    assert (404, "Not Found") == (refused.value.code, json.loads(refused.value.read())["type"])


def test_the_page_names_the_fields_that_are_not_compared() -> None:
    assert each_time_another() == EACH_TIME_ANOTHER


def cases_of(server: Server, api: str) -> Mapping[str, Json]:
    return CASES[server.name.partition(" ")[0].lower()][api]


async def asked(url: str, body: Json) -> bytes:
    return await asyncio.to_thread(ask, url, body)


def put_together(route: str, stream: bytes) -> Json:
    """Returns the complete answer that an agent assembles from a stream."""
    reading = DIALECTS[route]()
    for event in EventReader().feed([NetworkRead(0, None, stream)]):
        reading.add(event)
    reading.end()
    whole: Json = json.loads(reading.assemble())
    return whole
