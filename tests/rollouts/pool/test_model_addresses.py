"""Addresses at a real tap: their tokens, the entries sent to the controller, and the addresses that a dead pool left open."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import aiohttp
import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.records import JUDGE, Access, Endpoint, RolloutKey
from pytest_agentbench.rollouts.pool.model_addresses import Addresses, number_of, token_of
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptState, LabelReleased, OpenLabel, PoolEntry, RolloutTally
from pytest_agentbench.tap.protocol import TapPorts
from tests.labelled_router import Router, routing
from tests.tap.peers import CHAT, until

pytestmark = pytest.mark.timeout(60)

KEY, OTHER, LENT = (RolloutKey("shop", name) for name in ("s-0", "s-1", "s-2"))
NOTHING = Endpoint("http://127.0.0.1:9/v1", "m", context_length=8192)  # no server listens there
NO_TALLY = RolloutTally()

OK, CLOSED = 200, 410  # HTTP statuses of a call under an address


@pytest.fixture
def router() -> Iterator[Router]:
    """A backend that tracks rollouts."""
    with routing() as router:
        yield router


@pytest.fixture
def secret() -> str:
    """The token of a session."""
    return secrets.token_hex(16)


@asynccontextmanager
async def addresses(
    taps: TapPorts,
    endpoint: Endpoint,
    secret: str,
    tell: Callable[[PoolEntry], None],
    pool: int = 1,
    before: RolloutTally = NO_TALLY,
) -> AsyncIterator[Addresses]:
    """Yields the addresses of one pool, whose taps forward calls to an endpoint.

    The pool ends with the block, but open addresses stay open.
    """
    async with aiohttp.ClientSession() as session:
        those = Addresses("20260101-120000-1a2b", pool, secret, tell, lambda: "", before)
        those.session = session
        await those.connect(taps)
        await those.point_at(endpoint)
        yield those
        assert those.taps is not None
        those.taps.disconnect()


def endpoint_of(router: Router, **more: Any) -> Endpoint:
    return Endpoint(router.url, "m", context_length=8192, **more)


def state_after(entries: Sequence[PoolEntry]) -> AttemptState:
    """Returns the state of the attempts with which the next pool begins."""
    state = AttemptState()
    for entry in entries:
        state.apply(entry)
    return state


async def call(address: ModelAddress) -> int:
    """Makes a call under an address, and returns its HTTP status."""
    async with aiohttp.ClientSession() as session, session.post(f"{address.base_url}/chat/completions", json=CHAT) as answer:
        await answer.read()
        return answer.status


async def test_the_life_of_an_address(taps: TapPorts, router: Router, secret: str) -> None:
    """An address is reported before it is opened and after it was closed. In between it can be called, and closing returns its calls."""
    entries: list[PoolEntry] = []
    async with addresses(taps, endpoint_of(router), secret, entries.append, pool=3) as pool:
        agent, lent = await pool.open(KEY, Access()), await pool.lend(LENT, Access(role=JUDGE))
        assert [AddressOpened("3.1", KEY, False, None, NO_TALLY), AddressOpened("3.2", LENT, True, None, NO_TALLY)] == entries
        assert [OK, OK] == [await call(agent), await call(lent)]

        assert [""] == [each.role for each in await pool.close(agent.id)]
        assert [JUDGE] == [each.role for each in await pool.close(lent.id)]
        assert [CLOSED, CLOSED] == [await call(agent), await call(lent)]

    assert [AddressClosed("3.1", 1, False, NO_TALLY), AddressClosed("3.2", 1, False, NO_TALLY)] == entries[2:]


async def test_an_address_that_the_tap_refuses(taps: TapPorts, secret: str) -> None:
    """An address that the tap refuses is reported as opened, because it might be open, and then as closed without calls."""
    entries: list[PoolEntry] = []
    for refusal in ("", "the tap refused the message OpenAddress: an address with this id was opened before"):
        entries.clear()
        async with addresses(taps, NOTHING, secret, entries.append) as pool:
            if refusal:
                with pytest.raises(InfraError, match=refusal):
                    await pool.open(KEY, Access())
            else:
                await pool.open(KEY, Access())

    assert [AddressOpened("1.1", KEY, False, None, NO_TALLY), AddressClosed("1.1", 0, False, NO_TALLY)] == entries


async def test_no_two_pools_use_one_number(taps: TapPorts, secret: str) -> None:
    """Numbers begin with the pool's number, so pools of a session can count independently. The tap accepts all tokens."""
    entries: list[PoolEntry] = []
    for pool in (1, 2, 11, 12):
        async with addresses(taps, NOTHING, secret, entries.append, pool) as those:
            for _ in range(12):
                await those.open(KEY, Access())

    numbers = [entry.number for entry in entries if isinstance(entry, AddressOpened)]
    assert 48 == len(numbers) == len({*numbers})
    assert ("1.1", "1.12", "2.1", "11.1", "12.12") == (numbers[0], numbers[11], numbers[12], numbers[24], numbers[47])


async def test_a_token_can_be_derived_from_number_and_secret(taps: TapPorts, secret: str) -> None:
    """A later pool can derive the token from number and secret alone. Another secret or number gives another token."""
    entries: list[PoolEntry] = []
    async with addresses(taps, NOTHING, secret, entries.append, pool=4) as pool:
        address = await pool.open(KEY, Access())
    (entry,) = entries
    assert isinstance(entry, AddressOpened)

    assert token_of(entry.number, secret) == address.id
    assert "4.1" == entry.number == number_of(address.id)
    hidden = {token_of(number, each).partition("-")[2] for number in ("4.1", "4.2") for each in (secret, secret[:-1], secret[1:], "")}
    assert 8 == len(hidden)
    assert {32} == {len(each) for each in hidden}


async def test_entries_contain_no_secrets(taps: TapPorts, router: Router, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry contains a token, a key or a header of an endpoint, including the entries of a take-over."""
    monkeypatch.setenv("SEARCH_KEY", "hush-role")
    labels = {"kind": "thunderagent"}
    endpoint = endpoint_of(router, labels=labels, api_key="hush-backend", headers={"x-team": "hush-header"})
    elsewhere = {"url": router.url.replace("127.0.0.1", "localhost"), "model": "search", "api_key": "SEARCH_KEY"}
    entries: list[PoolEntry] = []
    async with addresses(taps, endpoint, secret, entries.append) as old:
        opened = [
            await old.open(KEY, Access()),
            await old.open(KEY, Access(role="search", endpoint=elsewhere)),
            await old.lend(LENT, Access()),
            await old.open(OTHER, Access()),
        ]
        assert [OK] * 4 == [await call(each) for each in opened]
        await old.close(opened[3].id)
        await until(lambda: old.tally.released == 1, "the release of a label")
    state = state_after(entries)
    async with addresses(taps, endpoint, secret, entries.append, 2, state.tally) as new:
        await new.take_over(state, [endpoint])
        await until(lambda: new.tally.released == 2, "the release of a label")
        opened.append(await new.open(KEY, Access()))

    sent = [*map(asdict, entries), *map(wire.header, entries)]
    text = json_text.dumps_any(sent).decode()
    assert {AddressOpened, AddressClosed, LabelReleased} == {type(entry) for entry in entries}
    assert [] == [each for each in (secret, "hush", "SEARCH_KEY") if each in text]
    assert [] == [each.id for each in opened if each.id in text or each.id.partition("-")[2] in text]


async def test_addresses_that_a_dead_pool_left_open(taps: TapPorts, router: Router, secret: str) -> None:
    """Addresses that a dead pool left open are closed at the tap, so that leftovers of an attempt can make no calls.

    Their calls are kept by rollout.
    """
    entries: list[PoolEntry] = []
    endpoint = endpoint_of(router)
    async with addresses(taps, endpoint, secret, entries.append) as old:
        agent, judge, idle = await old.open(KEY, Access()), await old.open(KEY, Access(role=JUDGE)), await old.open(OTHER, Access())
        over = await old.open(OTHER, Access())
        assert [OK] * 4 == [await call(each) for each in (agent, agent, judge, over)]
        await old.close(over.id)
    state = state_after(entries)
    assert {"1.1", "1.2", "1.3"} == state.addresses.keys()

    entries.clear()
    async with addresses(taps, endpoint, secret, entries.append, 2, state.tally) as new:
        assert {} == new.left_calls
        await new.take_over(state, [endpoint])

    assert {KEY: ["", "", JUDGE], OTHER: []} == {key: [each.role for each in calls] for key, calls in new.left_calls.items()}
    assert [AddressClosed(f"1.{number}", calls, False, NO_TALLY) for number, calls in ((1, 2), (2, 1), (3, 0))] == entries
    assert [CLOSED] * 4 == [await call(each) for each in (agent, judge, idle, over)]


async def test_addresses_that_a_dead_pool_lent_to_tests(taps: TapPorts, router: Router, secret: str) -> None:
    """Lent addresses stay open, because the test process still lives. It can call there, and any later pool can close them."""
    entries: list[PoolEntry] = []
    endpoint = endpoint_of(router, labels={"kind": "thunderagent"})
    async with addresses(taps, endpoint, secret, entries.append) as old:
        address = await old.lend(LENT, Access())
        assert OK == await call(address)
    (program,) = router.programs
    for pool in (2, 3):
        state = state_after(entries)
        async with addresses(taps, endpoint, secret, entries.append, pool, state.tally) as new:
            await new.take_over(state, [endpoint])
            assert {} == new.left_calls
            assert OK == await call(address)
            if pool == 3:
                assert 3 == len(await new.close(address.id))
                await until(lambda: new.tally.released == 1, "the release of the label")

    assert CLOSED == await call(address)
    assert [(program, True)] == router.releases
    opened = AddressOpened("1.1", LENT, True, OpenLabel(program, router.url), RolloutTally(labelled=1))
    closed = AddressClosed("1.1", 3, True, RolloutTally(labelled=1))
    assert [opened, closed, LabelReleased(program, RolloutTally(labelled=1, released=1, announced=1))] == entries


async def test_labels_that_a_dead_pool_has_not_released(taps: TapPorts, router: Router, secret: str) -> None:
    """Labels are released where they were announced, even if the dead pool had closed the address.

    Calls may go to another endpoint by now. The tally covers both pools.
    """
    entries: list[PoolEntry] = []
    endpoint = endpoint_of(router, labels={"kind": "thunderagent"})
    router.refusals = ["500"]
    async with addresses(taps, endpoint, secret, entries.append) as old:
        left, over, lent = await old.open(KEY, Access()), await old.open(OTHER, Access()), await old.lend(LENT, Access())
        assert [OK] * 3 == [await call(each) for each in (left, over, lent)]
        await old.close(over.id)
        await until(lambda: old.tally.failed == 1, "the end of the first release")
    state = state_after(entries)
    ids = {entry.key: entry.label.id for entry in entries if isinstance(entry, AddressOpened) and entry.label}
    assert ({"1.1", "1.3"}, {ids[OTHER]}) == ({*state.addresses}, {*state.labels})

    entries.clear()
    async with addresses(taps, NOTHING, secret, entries.append, 2, state.tally) as new:
        await new.take_over(state, [endpoint, NOTHING])
        await until(lambda: new.tally.released == 2, "the releases")
        tally = new.tally

    assert {ids[LENT]} == router.programs.keys()
    assert {ids[KEY], ids[OTHER]} == {entry.id for entry in entries if isinstance(entry, LabelReleased)}
    assert [("1.1", 1, True)] == [(entry.number, entry.calls, entry.unreleased) for entry in entries if isinstance(entry, AddressClosed)]
    # The tally in the last entry of the dead pool does not include a release that failed later.
    assert asdict(replace(state.tally, announced=2, released=2)) == asdict(tally)
    assert (3, 2, 2) == (tally.labelled, tally.announced, tally.released)


async def test_an_endpoint_that_is_not_known(taps: TapPorts, router: Router, secret: str) -> None:
    """Addresses at an unknown endpoint are closed like all others. Their labels are not released, because their router is unknown."""
    entries: list[PoolEntry] = []
    async with addresses(taps, endpoint_of(router, labels={"kind": "thunderagent"}), secret, entries.append) as old:
        address = await old.open(KEY, Access())
        assert OK == await call(address)
    state = state_after([*entries, AddressOpened("0.9", OTHER, False, OpenLabel("old", router.url), entries[-1].tally)])  # type: ignore[union-attr]
    state.apply(AddressClosed("0.9", 0, True, state.tally))

    entries.clear()
    async with addresses(taps, NOTHING, secret, entries.append, 2, state.tally) as new:
        await new.take_over(state, [])
        await new.release_all()

    assert [AddressClosed("1.1", 1, False, RolloutTally(labelled=1))] == entries
    assert ([KEY], CLOSED, []) == ([*new.left_calls], await call(address), router.releases)


async def test_a_tap_that_was_restarted(taps: TapPorts, router: Router, secret: str) -> None:
    """A restarted tap knows none of the open addresses. They count as closed without calls, and the others are closed as usual."""
    entries: list[PoolEntry] = []
    endpoint = endpoint_of(router, labels={"kind": "thunderagent"})
    async with addresses(taps, endpoint, secret, entries.append) as old:
        address = await old.open(KEY, Access())
        assert OK == await call(address)
    lost = AddressOpened("1.0", OTHER, False, OpenLabel("lost", router.url), RolloutTally())
    state = state_after([lost, *entries])

    entries.clear()
    async with addresses(taps, endpoint, secret, entries.append, 2, state.tally) as new:
        await new.take_over(state, [endpoint])
        await until(lambda: len(router.releases) == 2, "the releases")

    assert {KEY: 1} == {key: len(calls) for key, calls in new.left_calls.items() if calls}
    assert [("1.0", 0, True), ("1.1", 1, True)] == [
        (entry.number, entry.calls, entry.unreleased) for entry in entries if isinstance(entry, AddressClosed)
    ]
    assert CLOSED == await call(address)


async def test_without_a_tap(secret: str) -> None:
    """Without a tap an address cannot be opened, and the error has the reason. Open addresses count as closed, so that nothing waits."""
    entries: list[PoolEntry] = []
    state = state_after([AddressOpened("1.1", KEY, False, None, NO_TALLY)])
    async with aiohttp.ClientSession() as session:
        pool = Addresses("r", 2, secret, entries.append, lambda: "no GPU", NO_TALLY)
        pool.session = session
        assert not pool.has_taps
        with pytest.raises(InfraError, match=r"^no GPU$"):
            await pool.open(KEY, Access())
        await pool.take_over(state, [])

    assert {} == {key: calls for key, calls in pool.left_calls.items() if calls}
    assert [AddressClosed("1.1", 0, False, NO_TALLY)] == entries
