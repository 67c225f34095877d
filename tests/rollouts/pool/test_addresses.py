"""Addresses at a real tap: who knows their tokens, what the controller is told, and what becomes of those that a dead pool has left."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import aiohttp
import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import json_text, messages
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.records import JUDGE, Access, Endpoint, RolloutKey
from pytest_agentbench.rollouts.pool.addresses import Addresses, number_of, token_of
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptState, LabelReleased, OpenLabel, PoolEntry, RolloutTally
from pytest_agentbench.tap.protocol import TapPorts
from tests.router import Router, routing
from tests.tap.peers import CHAT, until

pytestmark = pytest.mark.timeout(60)

KEY, OTHER, LENT = (RolloutKey("shop", name) for name in ("s-0", "s-1", "s-2"))
NOTHING = Endpoint("http://127.0.0.1:9/v1", "m", context_length=8192)  # where nothing listens
NO_TALLY = RolloutTally()

OK, CLOSED = 200, 410  # of a call under an address


@pytest.fixture
def router() -> Iterator[Router]:
    """A backend that knows of rollouts."""
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
    """The addresses of one pool, whose taps send calls to an endpoint. The pool ends with the block, and leaves open what is open then."""
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
    """The state of the attempts that the next pool begins with."""
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
    """Its number is told before it is opened and after it was closed; between the two it can be called, and its calls come back."""
    told: list[PoolEntry] = []
    async with addresses(taps, endpoint_of(router), secret, told.append, pool=3) as pool:
        agent, lent = await pool.open(KEY, Access()), await pool.lend(LENT, Access(role=JUDGE))
        assert [AddressOpened("3.1", KEY, False, None, NO_TALLY), AddressOpened("3.2", LENT, True, None, NO_TALLY)] == told
        assert [OK, OK] == [await call(agent), await call(lent)]

        assert [""] == [each.role for each in await pool.close(agent.id)]
        assert [JUDGE] == [each.role for each in await pool.close(lent.id)]
        assert [CLOSED, CLOSED] == [await call(agent), await call(lent)]

    assert [AddressClosed("3.1", 1, False, NO_TALLY), AddressClosed("3.2", 1, False, NO_TALLY)] == told[2:]


async def test_an_address_that_the_tap_refuses(taps: TapPorts, secret: str) -> None:
    """It is told as opened all the same, since it might be open, and then as closed without a call."""
    told: list[PoolEntry] = []
    for refusal in ("", "the tap refused: an address with this id was opened before"):
        told.clear()
        async with addresses(taps, NOTHING, secret, told.append) as pool:
            if refusal:
                with pytest.raises(InfraError, match=refusal):
                    await pool.open(KEY, Access())
            else:
                await pool.open(KEY, Access())

    assert [AddressOpened("1.1", KEY, False, None, NO_TALLY), AddressClosed("1.1", 0, False, NO_TALLY)] == told


async def test_no_two_pools_use_one_number(taps: TapPorts, secret: str) -> None:
    """The number begins with the pool's, so the pools of a session can count for themselves; the tap takes all tokens."""
    told: list[PoolEntry] = []
    for pool in (1, 2, 11, 12):
        async with addresses(taps, NOTHING, secret, told.append, pool) as those:
            for _ in range(12):
                await those.open(KEY, Access())

    numbers = [entry.number for entry in told if isinstance(entry, AddressOpened)]
    assert 48 == len(numbers) == len({*numbers})
    assert ("1.1", "1.12", "2.1", "11.1", "12.12") == (numbers[0], numbers[11], numbers[12], numbers[24], numbers[47])


async def test_a_token_can_be_derived_from_number_and_secret(taps: TapPorts, secret: str) -> None:
    """Nothing else is needed, so a later pool knows the token of a number. Another secret or number makes another token."""
    told: list[PoolEntry] = []
    async with addresses(taps, NOTHING, secret, told.append, pool=4) as pool:
        address = await pool.open(KEY, Access())
    (entry,) = told
    assert isinstance(entry, AddressOpened)

    assert token_of(entry.number, secret) == address.id
    assert "4.1" == entry.number == number_of(address.id)
    hidden = {token_of(number, each).partition("-")[2] for number in ("4.1", "4.2") for each in (secret, secret[:-1], secret[1:], "")}
    assert 8 == len(hidden)
    assert {32} == {len(each) for each in hidden}


async def test_nothing_secret_is_told(taps: TapPorts, router: Router, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry contains a token of an address or of the session, or a key or header of an endpoint, those of a take-over included."""
    monkeypatch.setenv("SEARCH_KEY", "hush-role")
    labels = {"kind": "thunderagent"}
    endpoint = endpoint_of(router, labels=labels, api_key="hush-backend", headers={"x-team": "hush-header"})
    elsewhere = {"url": router.url.replace("127.0.0.1", "localhost"), "model": "search", "api_key": "SEARCH_KEY"}
    told: list[PoolEntry] = []
    async with addresses(taps, endpoint, secret, told.append) as old:
        opened = [
            await old.open(KEY, Access()),
            await old.open(KEY, Access(role="search", endpoint=elsewhere)),
            await old.lend(LENT, Access()),
            await old.open(OTHER, Access()),
        ]
        assert [OK] * 4 == [await call(each) for each in opened]
        await old.close(opened[3].id)
        await until(lambda: old.tally.released == 1, "the release of a label")
    state = state_after(told)
    async with addresses(taps, endpoint, secret, told.append, 2, state.tally) as new:
        await new.take_over(state, [endpoint])
        await until(lambda: new.tally.released == 2, "the release of a label")
        opened.append(await new.open(KEY, Access()))

    sent = [*map(asdict, told), *map(messages.header, told)]
    text = json_text.dumps_any(sent).decode()
    assert {AddressOpened, AddressClosed, LabelReleased} == {type(entry) for entry in told}
    assert [] == [each for each in (secret, "hush", "SEARCH_KEY") if each in text]
    assert [] == [each.id for each in opened if each.id in text or each.id.partition("-")[2] in text]


async def test_addresses_that_a_dead_pool_left_open(taps: TapPorts, router: Router, secret: str) -> None:
    """They are closed at the tap, so that what is left of an attempt can call no more, and their calls are kept by rollout."""
    told: list[PoolEntry] = []
    endpoint = endpoint_of(router)
    async with addresses(taps, endpoint, secret, told.append) as old:
        agent, judge, idle = await old.open(KEY, Access()), await old.open(KEY, Access(role=JUDGE)), await old.open(OTHER, Access())
        over = await old.open(OTHER, Access())
        assert [OK] * 4 == [await call(each) for each in (agent, agent, judge, over)]
        await old.close(over.id)
    state = state_after(told)
    assert {"1.1", "1.2", "1.3"} == state.addresses.keys()

    told.clear()
    async with addresses(taps, endpoint, secret, told.append, 2, state.tally) as new:
        assert {} == new.left_calls
        await new.take_over(state, [endpoint])

    assert {KEY: ["", "", JUDGE], OTHER: []} == {key: [each.role for each in calls] for key, calls in new.left_calls.items()}
    assert [AddressClosed(f"1.{number}", calls, False, NO_TALLY) for number, calls in ((1, 2), (2, 1), (3, 0))] == told
    assert [CLOSED] * 4 == [await call(each) for each in (agent, judge, idle, over)]


async def test_addresses_that_a_dead_pool_has_lent(taps: TapPorts, router: Router, secret: str) -> None:
    """They stay open, because the test process lives: it continues to call there, and any later pool can close them."""
    told: list[PoolEntry] = []
    endpoint = endpoint_of(router, labels={"kind": "thunderagent"})
    async with addresses(taps, endpoint, secret, told.append) as old:
        address = await old.lend(LENT, Access())
        assert OK == await call(address)
    (program,) = router.programs
    for pool in (2, 3):
        state = state_after(told)
        async with addresses(taps, endpoint, secret, told.append, pool, state.tally) as new:
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
    assert [opened, closed, LabelReleased(program, RolloutTally(labelled=1, released=1, announced=1))] == told


async def test_labels_that_a_dead_pool_has_not_released(taps: TapPorts, router: Router, secret: str) -> None:
    """Those of closed addresses are released where they were announced, also if the dead pool had closed the address.

    Calls may go elsewhere by now. The tally of both pools is one.
    """
    told: list[PoolEntry] = []
    endpoint = endpoint_of(router, labels={"kind": "thunderagent"})
    router.refusals = ["500"]
    async with addresses(taps, endpoint, secret, told.append) as old:
        left, over, lent = await old.open(KEY, Access()), await old.open(OTHER, Access()), await old.lend(LENT, Access())
        assert [OK] * 3 == [await call(each) for each in (left, over, lent)]
        await old.close(over.id)
        await until(lambda: old.tally.failed == 1, "the end of the first release")
    state = state_after(told)
    ids = {entry.key: entry.label.id for entry in told if isinstance(entry, AddressOpened) and entry.label}
    assert ({"1.1", "1.3"}, {ids[OTHER]}) == ({*state.addresses}, {*state.labels})

    told.clear()
    async with addresses(taps, NOTHING, secret, told.append, 2, state.tally) as new:
        await new.take_over(state, [endpoint, NOTHING])
        await until(lambda: new.tally.released == 2, "the releases")
        tally = new.tally

    assert {ids[LENT]} == router.programs.keys()
    assert {ids[KEY], ids[OTHER]} == {entry.id for entry in told if isinstance(entry, LabelReleased)}
    assert [("1.1", 1, True)] == [(entry.number, entry.calls, entry.unreleased) for entry in told if isinstance(entry, AddressClosed)]
    # The tally that the last entry of the dead pool has does not count a release that failed after it.
    assert asdict(replace(state.tally, announced=2, released=2)) == asdict(tally)
    assert (3, 2, 2) == (tally.labelled, tally.announced, tally.released)


async def test_an_endpoint_that_is_not_known(taps: TapPorts, router: Router, secret: str) -> None:
    """Addresses there are closed like all others. Their labels are not released, because the place to release them is unknown."""
    told: list[PoolEntry] = []
    async with addresses(taps, endpoint_of(router, labels={"kind": "thunderagent"}), secret, told.append) as old:
        address = await old.open(KEY, Access())
        assert OK == await call(address)
    state = state_after([*told, AddressOpened("0.9", OTHER, False, OpenLabel("old", router.url), told[-1].tally)])  # type: ignore[union-attr]
    state.apply(AddressClosed("0.9", 0, True, state.tally))

    told.clear()
    async with addresses(taps, NOTHING, secret, told.append, 2, state.tally) as new:
        await new.take_over(state, [])
        await new.release_all()

    assert [AddressClosed("1.1", 1, False, RolloutTally(labelled=1))] == told
    assert ([KEY], CLOSED, []) == ([*new.left_calls], await call(address), router.releases)


async def test_a_tap_that_was_restarted(taps: TapPorts, router: Router, secret: str) -> None:
    """It knows none of the addresses that were open. They count as closed without calls, and the others are closed as usual."""
    told: list[PoolEntry] = []
    endpoint = endpoint_of(router, labels={"kind": "thunderagent"})
    async with addresses(taps, endpoint, secret, told.append) as old:
        address = await old.open(KEY, Access())
        assert OK == await call(address)
    lost = AddressOpened("1.0", OTHER, False, OpenLabel("lost", router.url), RolloutTally())
    state = state_after([lost, *told])

    told.clear()
    async with addresses(taps, endpoint, secret, told.append, 2, state.tally) as new:
        await new.take_over(state, [endpoint])
        await until(lambda: len(router.releases) == 2, "the releases")

    assert {KEY: 1} == {key: len(calls) for key, calls in new.left_calls.items() if calls}
    assert [("1.0", 0, True), ("1.1", 1, True)] == [
        (entry.number, entry.calls, entry.unreleased) for entry in told if isinstance(entry, AddressClosed)
    ]
    assert CLOSED == await call(address)


async def test_without_a_tap(secret: str) -> None:
    """An address cannot be opened, and the reason is why there is no backend; what was open counts as closed, so that nothing waits."""
    told: list[PoolEntry] = []
    state = state_after([AddressOpened("1.1", KEY, False, None, NO_TALLY)])
    async with aiohttp.ClientSession() as session:
        pool = Addresses("r", 2, secret, told.append, lambda: "no GPU", NO_TALLY)
        pool.session = session
        assert not pool.has_taps
        with pytest.raises(InfraError, match=r"^no GPU$"):
            await pool.open(KEY, Access())
        await pool.take_over(state, [])

    assert {} == {key: calls for key, calls in pool.left_calls.items() if calls}
    assert [AddressClosed("1.1", 0, False, NO_TALLY)] == told
