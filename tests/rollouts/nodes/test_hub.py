"""The hub with node workers on real sockets that send what a test wants: whose records count, and who gets which lease."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.records import Endpoint, RolloutKey
from pytest_agentbench.rollouts.nodes.connection import VARIABLE
from pytest_agentbench.rollouts.nodes.hub import Hub
from pytest_agentbench.rollouts.nodes.protocol import (
    AttemptEnded,
    Bye,
    GiveLease,
    Joined,
    Leaving,
    NodePointed,
    NotAdmitted,
    RevokeLease,
    Welcome,
)
from pytest_agentbench.rollouts.pool.controller_link import ControllerLink
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted
from pytest_agentbench.rollouts.pool.model_addresses import Addresses
from pytest_agentbench.rollouts.protocol import BlockSettings, NodeTerms, PoolNote, PoolSettings, ShowUser
from pytest_agentbench.runs.attempts import AttemptBegun, RolloutTally
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from pytest_agentbench.tap.protocol import Budgets
from tests.node_workers import ScriptedNode
from tests.rollouts.pool.test_server import pool_settings
from tests.tap.peers import until

pytestmark = pytest.mark.timeout(60)

TOKEN = "for-nodes"
KEYS = [RolloutKey("shop", f"s-{number}") for number in range(12)]
BACKEND = Endpoint("http://127.0.0.1:9/v1", "m", "ours")


class Host(ControllerLink):
    """The pool and the controller in one, as the hub sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[PoolNote] = []
        self.sizes: list[int] = []
        self.stopped: list[str] = []
        self.given_up: list[tuple[str, str]] = []
        self.waits = False

    def tell(self, message: PoolNote) -> None:
        self.notes.append(message)

    def resize(self, slots: int) -> None:
        self.sizes.append(slots)

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)

    def apply_holds(self) -> None:
        """Nothing is held here."""

    def give_up(self, group: str, reason: str) -> None:
        self.given_up.append((group, reason))

    @property
    def shown(self) -> list[str]:
        return [note.sentence for note in self.notes if isinstance(note, ShowUser)]


def settings(folder: Path, **changes: Any) -> PoolSettings:
    scenarios = tuple(Scenario(key.scenario, ({"role": "user", "content": "A lamp?"},)) for key in KEYS)
    dataset = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", len(KEYS))
    return pool_settings(Suite("shop", folder, scenarios, dataset=dataset, agent={"kind": "tool_calling"}), **changes)


class Session:
    """A hub that serves, and the node workers that a test lets join."""

    def __init__(self, hub: Hub, host: Host, port: int) -> None:
        self.hub, self.host, self.port = hub, host, port
        self.nodes: list[ScriptedNode] = []

    async def join(self, name: str = "n1", **fields: Any) -> ScriptedNode:
        """Has a node worker join, and waits until the session gives it leases."""
        node = await self.connect(name, **fields)
        before = len(self.host.shown)
        await asyncio.to_thread(node.point)
        await until(lambda: len(self.host.shown) > before, "the session's note")
        return node

    async def connect(self, name: str = "n1", **fields: Any) -> ScriptedNode:
        node = await asyncio.to_thread(lambda: ScriptedNode(self.port, TOKEN, name=name, **fields))
        self.nodes.append(node)
        return node

    def attempt(self, key: RolloutKey) -> asyncio.Task[Any]:
        return asyncio.create_task(self.hub.attempt(key))


@asynccontextmanager
async def session(folder: Path, wait_s: float = 60, **changes: Any) -> AsyncIterator[Session]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    host = Host()
    terms = NodeTerms(TOKEN, listener.detach(), None, wait_s, Budgets(), 1, None)
    addresses = Addresses("r", 1, "secret", host.tell, lambda: "", RolloutTally())
    hub = Hub(terms, settings(folder, **changes), host, addresses, host, 1)
    await hub.serve()
    await hub.point_at(BACKEND, "")
    running = Session(hub, host, port)
    try:
        yield running
    finally:
        for node in running.nodes:
            node.close()
        hub.abort()
        await asyncio.sleep(0)


async def leased(node: ScriptedNode) -> GiveLease:
    return await asyncio.to_thread(node.lease)


async def next_of(node: ScriptedNode) -> Any:
    return await asyncio.to_thread(node.next)


async def test_a_record_of_the_lease(tmp_path: Path) -> None:
    """The record that a node worker sends for its lease is the attempt's result, and names the node worker."""
    async with session(tmp_path) as those:
        node = await those.join()
        attempt = those.attempt(KEYS[0])
        lease = await leased(node)
        node.start(lease)
        node.end(lease.lease, lease.key)
        rollout = await attempt

    assert KEYS[0] == lease.key
    assert ("ok", "scripted", "w1") == (rollout.status, rollout.answer, rollout.node)
    assert [KEYS[0]] == [note.key for note in those.host.notes if isinstance(note, AttemptBegun)]
    assert 2 == max(those.host.sizes)


async def test_records_of_other_leases(tmp_path: Path) -> None:
    """A second record for a lease, and records for leases that were revoked, never given or given to another node worker, are ignored."""
    async with session(tmp_path) as those:
        one, two = await those.join("n1"), await those.join("n2")
        attempts = [those.attempt(key) for key in KEYS[:3]]
        first, second, third = await leased(one), await leased(two), await leased(one)
        for foreign in (second.lease, first.lease + 1000):
            one.end(foreign, second.key, "agent_error")
        one.end(first.lease, first.key)
        one.end(first.lease, first.key, "agent_error")
        assert "ok" == (await attempts[KEYS.index(first.key)]).status
        attempts[KEYS.index(third.key)].cancel()
        assert RevokeLease(third.lease) == await next_of(one)
        one.end(third.lease, third.key)
        two.end(second.lease, second.key)
        assert "ok" == (await attempts[KEYS.index(second.key)]).status
        another = those.attempt(KEYS[5])
        lease = await leased(one)
        one.end(lease.lease, lease.key)
        await another
        assert {"w1": 4, "w2": 0} == {name: node.dropped for name, node in those.hub._nodes.items()}

    assert not [sentence for sentence in those.host.shown if "lost" in sentence]


@pytest.mark.parametrize(
    ("send", "words"),
    [
        (lambda node, lease: node.end(lease.lease, KEYS[9]), "it has sent the record of shop[s-9] for shop[s-0]"),
        (lambda node, lease: node.connection.send(AttemptEnded(lease.lease, 0, interrupted=False), b'{"status": 7}'), "cannot be handled"),
        (lambda node, _: node.connection.send_frame(["Nonsense", {}], b""), "'Nonsense' is unknown"),
        (lambda node, _: node.connection.send_frame([1, 2, 3], b""), "is not a message"),
        (lambda node, _: node.connection._send(b"GET / HTTP/1.1\r\n\r\n"), "the other process does not use this protocol"),
        (lambda node, _: node.connection.send(Leaving("SIGTERM came")), "SIGTERM came"),
        (lambda node, _: node.connection.close(), "its connection was closed"),
    ],
    ids=["of-another-key", "no-record", "no-message", "no-names", "another-protocol", "leaving", "closed"],
)
async def test_lost(tmp_path: Path, send: Callable[[ScriptedNode, GiveLease], None], words: str) -> None:
    """A node worker that leaves, or sends what is wrong, is lost: its attempt is interrupted, and the next one is made elsewhere."""
    async with session(tmp_path) as those:
        node = await those.join("n1")
        attempt = those.attempt(KEYS[0])
        lease = await leased(node)
        send(node, lease)
        with pytest.raises(Interrupted) as interruption:
            await attempt
        assert 0 == those.host.sizes[-1]
        other, again = await those.join("n2"), those.attempt(KEYS[0])
        new = await leased(other)
        other.end(new.lease, new.key)
        assert "ok" == (await again).status

    reason = interruption.value.rollout.reason
    assert words in reason
    assert reason.startswith("the node worker w1 on n1 was lost: ")
    assert f"{reason}; 1 rollout runs again" in those.host.shown
    assert new.lease > lease.lease


async def test_three_losses(tmp_path: Path) -> None:
    """The third loss of a rollout ends it with that reason, though no node worker is left. A further attempt fails at once."""
    async with session(tmp_path) as those:
        for number in range(3):
            node = await those.join(f"n{number}")
            attempt = those.attempt(KEYS[0])
            await leased(node)
            node.close()
            if number < 2:
                with pytest.raises(Interrupted):
                    await attempt
        rollout = await attempt
        further = await those.hub.attempt(KEYS[0])

    assert {"infra_error"} == {rollout.status, further.status}
    assert "3 node workers were lost while this rollout ran; run it alone with -k" in rollout.reason
    assert "w3 on n2 was lost" in rollout.reason
    assert "3 node workers were lost" in further.reason


async def test_the_same_instance(tmp_path: Path) -> None:
    """If a node worker joins while its earlier connection is open, the earlier one is lost. Two others of one node may both join."""
    async with session(tmp_path) as those:
        old = await those.join("n1", instance="a")
        attempt = those.attempt(KEYS[0])
        await leased(old)
        await those.join("n1", instance="a")
        with pytest.raises(Interrupted, match="it has connected again"):
            await attempt
        assert await asyncio.to_thread(old.is_closed)
        await those.join("n1", instance="b")

        assert 4 == those.host.sizes[-1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"package": "0123456789abcdef"}, "it has package 0123456789abcdef on Python"),
        ({"python": "2.7"}, "on Python 2.7, and the session has package"),
        ({"slots": 0}, "it has 0 slots"),
    ],
)
async def test_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """A node worker with another package or Python, or without slots, is told why it cannot take part, and so is the user."""
    async with session(tmp_path) as those:
        node = await those.connect(joined=False, **fields)
        answer = await next_of(node)

    assert isinstance(answer, NotAdmitted)
    assert not answer.again
    assert words in answer.reason
    assert [f"a node worker on n1 cannot take part: {answer.reason}"] == those.host.shown


async def test_files_that_cannot_travel(tmp_path: Path) -> None:
    """If the suites' files cannot be sent, no node worker is admitted, and the session stops with the reason."""
    async with session(tmp_path / "nowhere") as those:
        node = await those.connect(joined=False)
        answer = await next_of(node)
        rollout = await those.hub.attempt(KEYS[0])

    assert isinstance(answer, NotAdmitted)
    assert "nowhere cannot be sent to node workers" in answer.reason
    assert [answer.reason] == those.host.stopped
    assert answer.reason == rollout.reason


async def test_backend_out_of_reach(tmp_path: Path) -> None:
    """A node worker that cannot call the backend gets no lease and may join again. The user is told once, however often it tries."""
    async with session(tmp_path) as those:
        for _ in range(3):
            node = await those.connect("far", joined=False)
            assert isinstance(await next_of(node), Welcome)
            node.pointed = "no route to host"
            node.connection.send(Joined())
            answer = await next_of(node)
            assert NotAdmitted("no route to host", again=True) == answer
            node.close()
        await until(lambda: bool(those.host.shown), "the sentence")

    assert ["the node worker w1 on far was lost: no route to host"] == those.host.shown


async def fail_all(node: ScriptedNode, count: int) -> None:
    for _ in range(count):
        lease = await leased(node)
        node.end(lease.lease, lease.key, "infra_error", "the route is dead")


async def test_breaker(tmp_path: Path) -> None:
    """A node worker is held after three failures in a row, and has to join again when a rollout that began later succeeds elsewhere.

    The second time it is not admitted again.
    """
    async with session(tmp_path) as those:
        good = await those.join("good", slots=1)
        for again in (True, False):
            early = those.attempt(KEYS[11])
            begun = await leased(good)
            bad = await those.join("bad", slots=9)
            failing = [those.attempt(key) for key in KEYS[:3]]
            await fail_all(bad, 3)
            assert {"infra_error"} == {rollout.status for rollout in await asyncio.gather(*failing)}
            assert 1 == those.host.sizes[-1]
            good.end(begun.lease, begun.key)
            await early
            late = those.attempt(KEYS[4])
            lease = await leased(good)
            assert "bad" == [*those.hub._nodes.values()][-1].join.node  # The early success says nothing about later faults.
            good.end(lease.lease, lease.key)
            await late
            assert NotAdmitted("3 rollouts in a row have failed there alone: the route is dead", again) == await next_of(bad)
            assert await asyncio.to_thread(bad.is_closed)


async def test_failures_everywhere(tmp_path: Path) -> None:
    """If rollouts fail at all node workers, none is held, because the fault is elsewhere."""
    async with session(tmp_path) as those:
        nodes = [await those.join("n1", slots=3), await those.join("n2", slots=3)]
        attempts = [those.attempt(key) for key in KEYS[:6]]
        for node in nodes:
            await fail_all(node, 3)
        await asyncio.gather(*attempts)

        assert 6 == those.host.sizes[-1]


async def test_interrupted_attempts_are_no_failures(tmp_path: Path) -> None:
    """Attempts that the death of a process on the node interrupted are repeated, and do not count as failures of the node worker."""
    async with session(tmp_path) as those:
        other = await those.join("other", slots=1)
        begun = those.attempt(KEYS[11])
        await leased(other)
        node = await those.join("n1", slots=9)
        attempts = [those.attempt(key) for key in KEYS[:4]]
        for _ in attempts:
            lease = await leased(node)
            node.end(lease.lease, lease.key, "infra_error", "the tap died", interrupted=True)
        results = await asyncio.gather(*attempts, return_exceptions=True)

        assert [Interrupted] * 4 == [type(result) for result in results]
        assert 10 == those.host.sizes[-1]
        begun.cancel()


async def test_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node worker that sends nothing for longer than the silence, which it gets with Welcome, loses its leases."""
    monkeypatch.setenv(VARIABLE, "1.5")
    async with session(tmp_path) as those:
        node = await those.connect("n1", joined=False)
        welcome = await next_of(node)
        node.connection.send(Joined())
        node.connection.send(NodePointed(1, 0.1))
        attempt = those.attempt(KEYS[0])
        with pytest.raises(Interrupted, match="nothing has come from it for"):
            await attempt

    assert 1.5 == welcome.silence_s


async def test_nobody_is_there(tmp_path: Path) -> None:
    """If rollouts wait and no node worker is there for longer than the wait, the session stops, and an attempt that waits ends."""
    async with session(tmp_path, wait_s=0.5) as those:
        waiting = those.attempt(KEYS[0])
        those.host.waits = True
        rollout = await waiting

    assert "infra_error" == rollout.status
    assert "no node worker has been there for 0.5 s; start one with" in rollout.reason
    assert rollout.reason == those.host.stopped[0]


async def test_arms_run_on_the_same_node(tmp_path: Path) -> None:
    """A scenario and trial runs at the node where it ran last in the other arm, also if others are less busy; elsewhere if that is gone."""
    origins = {"a": VariantOrigin("default", "A"), "b": VariantOrigin("default", "B")}
    async with session(tmp_path, blocks=BlockSettings(origins, "carry", False, {})) as those:
        nodes = {name: await those.join(name, slots=4) for name in ("n1", "n2")}
        keys = [replace_variant(key, "a") for key in KEYS[:4]]
        attempts = [those.attempt(key) for key in keys]
        places = {}
        for name in ("n1", "n2", "n1", "n2"):
            lease = await leased(nodes[name])
            places[lease.key.scenario] = name
            nodes[name].end(lease.lease, lease.key)
        await asyncio.gather(*attempts)
        moving = asyncio.create_task(those.hub.point_at(replace(BACKEND, model="other"), ""))
        for node in nodes.values():
            await asyncio.to_thread(node.point)
        await moving
        on_first = [scenario for scenario, name in places.items() if name == "n1"]
        again = [those.attempt(RolloutKey("shop", scenario, "b")) for scenario in on_first]
        assert {*on_first} == {(await leased(nodes["n1"])).key.scenario for _ in on_first}
        nodes["n1"].close()
        await asyncio.gather(*again, return_exceptions=True)
        elsewhere = those.attempt(RolloutKey("shop", on_first[0], "b"))
        lease = await leased(nodes["n2"])
        nodes["n2"].end(lease.lease, lease.key)
        await elsewhere

    assert on_first[0] == lease.key.scenario


def replace_variant(key: RolloutKey, variant: str) -> RolloutKey:
    return RolloutKey(key.suite, key.scenario, variant, key.trial)


async def test_garbage_before_a_join(tmp_path: Path) -> None:
    """A connection with a wrong token, or one whose first message is none, is closed and hurts nobody."""
    async with session(tmp_path) as those:
        node = await those.join()
        for frame in (wire.framed(["Hello", {"token": "wrong", "role": "node", "protocol": 1}], b""), b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", those.port)
            writer.write(frame)
            assert b"" == await reader.read()
            writer.close()
        attempt = those.attempt(KEYS[0])
        lease = await leased(node)
        node.end(lease.lease, lease.key)

        assert "ok" == (await attempt).status


async def test_the_end(tmp_path: Path) -> None:
    """At the end, node workers are told, and the session waits until they have gone."""
    async with session(tmp_path) as those:
        node = await those.join()
        closing = asyncio.create_task(those.hub.close())
        assert Bye("the session is over") == await next_of(node)
        node.close()
        await closing

    assert not [sentence for sentence in those.host.shown if "lost" in sentence]
