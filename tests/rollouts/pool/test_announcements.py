"""Rollouts are announced to the stack and released, whatever the stack answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import aiohttp
import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool import announcements
from pytest_agentbench.rollouts.pool.announcements import Announcer
from pytest_agentbench.runs.attempts import RolloutTally
from tests.labelled_router import Router, routing

KEY = RolloutKey("shop", "shop-0")
ANSWERED = LLMCall(0, 1, 2, http_status=200)
NOTHING = "http://127.0.0.1:9/v1"  # no server listens there


@pytest.fixture
def router() -> Iterator[Router]:
    with routing() as router:
        yield router


@asynccontextmanager
async def announcer(url: str, kind: str = "thunderagent", **options: Any) -> AsyncIterator[Announcer]:
    async with aiohttp.ClientSession() as session:
        endpoint = Endpoint(url, "m", labels={"kind": kind, **options}, api_key="hush", headers={"x-team": "bench"})
        yield Announcer(endpoint, session, "20260101-120000-1a2b")


async def call(announcer: Announcer, token: str, key: RolloutKey = KEY) -> str:
    """Announces a rollout that then makes a call. Returns the id in the stack."""
    label = announcer.announce(token, key)
    fields = label.fields
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **fields}
    async with announcer.session.post(f"{announcer.endpoint.url}/chat/completions", json=body, headers=dict(label.headers)) as answer:
        answer.raise_for_status()
    return str(fields.get("program_id") or label.headers.get("x-dynamo-session-id", ""))


def tally(**counts: int) -> Json:
    return asdict(RolloutTally(**counts))


@pytest.mark.parametrize("options", [{"kind": "thunderagent"}, {"kind": "dynamo", "release": True}])
async def test_every_attempt_has_an_id_and_a_release(router: Router, options: Json) -> None:
    """Two attempts of one rollout are two programs. Each is released once when it is over, and none is left."""
    async with announcer(router.url, **options) as stack:
        ids = [await call(stack, token) for token in ("1", "2")]
        assert dict.fromkeys(ids, 1) == router.programs

        stack.end("1", [ANSWERED])
        stack.end("1", [ANSWERED])
        stack.end("nobody's")
        await stack.release_all()

    assert 2 == len(set(ids))
    assert [] == [id for id in ids if not re.fullmatch(r"20260101-120000-1a2b:shop\.shop-0\.1:[0-9a-f]{8}", id)]
    assert sorted((id, True) for id in ids) == sorted(router.releases)
    assert tally(labelled=2, announced=1 + (options["kind"] == "thunderagent"), released=2) == asdict(stack.tally)
    assert 2 == len(router.chats)  # The last call of a program is sent by its release, and does not reach an engine.


@pytest.mark.parametrize(("kind", "place"), [("thunderagent", "program_id"), ("dynamo", "x-dynamo-session-id")])
async def test_a_judge_is_another_program(router: Router, kind: str, place: str) -> None:
    """The id of a judge's calls names the judge, so that no stack takes them for calls of the agent."""
    async with announcer(router.url, kind) as stack:
        labels = [stack.announce(token, KEY, role) for token, role in (("1", ""), ("2", "judge"))]
        agent, judge = (str(label.fields.get(place) or dict(label.headers)[place]) for label in labels)

    assert (False, True) == (agent.endswith("-judge"), judge.endswith("-judge"))
    assert agent != judge.removesuffix("-judge")


@pytest.mark.parametrize("options", [{"kind": "none"}, {}, {"kind": "dynamo"}])
async def test_stacks_that_wait_for_no_release(router: Router, options: Json) -> None:
    """Stacks that need no releases get none."""
    async with announcer(router.url, **{"kind": "none", **options}) as stack:
        await call(stack, "1")
        stack.end("1", [ANSWERED])
        await stack.release_all()
    has_label = int(options.get("kind") == "dynamo")

    assert [] == router.releases
    assert tally(labelled=has_label, announced=has_label) == asdict(stack.tally)
    assert 1 == len(router.chats)


@pytest.mark.parametrize("faults", [["reset"], ["reset", "reset"]])
async def test_connections_that_break(router: Router, faults: list[str]) -> None:
    """If the connection fails, a release is sent again on a new connection."""
    router.refusals = faults
    async with announcer(router.url) as stack:
        id = await call(stack, "1")
        stack.end("1")
        await stack.release_all()

    assert [(id, True)] == router.releases
    assert tally(labelled=1, announced=1, released=1) == asdict(stack.tally)


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (["500"], "is not released: POST http.*/programs/release answered 500: .*Internal Server Error"),
        (["reset"] * 3, "is not released: "),
        (["silence"], "is not released: no answer within 0.2 s"),
    ],
)
async def test_releases_that_fail(
    router: Router, faults: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed releases are logged and counted, and sent once more at the end of the session."""
    monkeypatch.setattr(announcements, "SECONDS", 0.2)  # The time itself is not tested.
    router.refusals = [*faults]
    async with announcer(router.url) as stack:
        id = await call(stack, "1")
        stack.end("1")
        await asyncio.gather(*stack._releasing)
        failed = asdict(stack.tally)
        monkeypatch.undo()
        await stack.release_all()

    assert tally(labelled=1, failed=1) == failed
    assert re.search(f"^labels: {re.escape(id)} {sentence}", capsys.readouterr().err)
    assert tally(labelled=1, announced=1, released=1, failed=1) == asdict(stack.tally)
    assert {} == router.programs


async def test_a_stack_that_has_died(capsys: pytest.CaptureFixture[str]) -> None:
    """If the stack has died, unreleased rollouts are counted as left, and one is named in the log."""
    async with announcer(NOTHING) as stack:
        stack.announce("1", KEY)
        stack.end("1")
        await stack.release_all()
    log = capsys.readouterr().err

    assert tally(labelled=1, failed=1, left=1) == asdict(stack.tally)
    assert "the stack does not list its rollouts" in log
    assert "1 rollouts are not released, among them 20260101-120000-1a2b:" in log


async def test_rollouts_that_were_not_closed(router: Router) -> None:
    """At the end of the session, rollouts that are not closed are released, and those of this session that the stack still lists."""
    async with announcer(router.url) as stack:
        unclosed, late = await call(stack, "1"), await call(stack, "2")
        stack.end("2")
        await asyncio.gather(*stack._releasing)
        router.programs[late] = 1  # A call in the router's queue registers the program again.
        router.programs["20260101-120000-ffff0:other.session.1:01234567"] = 1
        await stack.release_all()

    assert {"20260101-120000-ffff0:other.session.1:01234567"} == router.programs.keys()
    assert {unclosed, late} == {id for id, _ in router.releases}
    assert tally(labelled=2, announced=2, released=3) == asdict(stack.tally)


async def test_a_router_that_was_started_again(router: Router) -> None:
    """A restarted router does not know the released id. That is not a failure, and the rollout does not count as announced."""
    router.lists = False
    async with announcer(router.url) as stack:
        id = await call(stack, "1")
        router.programs.clear()
        stack.end("1")
        await stack.release_all()

    assert [(id, False)] == router.releases
    assert tally(labelled=1, released=1) == asdict(stack.tally)


async def test_a_router_that_is_bypassed(router: Router, capsys: pytest.CaptureFixture[str]) -> None:
    """A session's last call that is answered with text was answered by an engine, which causes a warning."""
    router.knows_sessions = False
    async with announcer(router.url, "dynamo", release=True) as stack:
        stack.announce("1", KEY)
        stack.end("1")
        await stack.release_all()

    assert "was answered with text: calls do not go through the router" in capsys.readouterr().err
    assert tally(labelled=1, released=1, bypassed=1) == asdict(stack.tally)


async def test_releases_have_the_backends_key(router: Router) -> None:
    """A release goes to the same server as calls, with the same key and headers."""
    router.knows_sessions = False
    async with announcer(router.url, "dynamo", release=True) as stack:
        stack.announce("1", KEY)
        stack.end("1")
        await stack.release_all()
    ((headers, _),) = router.chats

    assert ("Bearer hush", "bench") == (headers["authorization"], headers["x-team"])


async def test_rollouts_without_calls(router: Router) -> None:
    """A rollout without calls has not arrived. If the stack does not report arrivals, an answered call counts as arrival."""
    async with announcer(router.url, "dynamo") as stack:
        for token, calls in (("1", []), ("2", [LLMCall(0, 1, 2)]), ("3", [ANSWERED])):
            stack.announce(token, KEY)
            stack.end(token, calls)

    assert tally(labelled=3, announced=1) == asdict(stack.tally)


async def test_unknown_labels() -> None:
    """An unknown kind of labels is an error that names it."""
    with pytest.raises(ConfigError, match="labels: no kind 'dynamic'"):
        async with announcer(NOTHING, "dynamic"):
            pass
