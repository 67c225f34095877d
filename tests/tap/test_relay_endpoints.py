"""Addresses with their own backend: judges that use another endpoint."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.tap.protocol import UpstreamFacts
from tests.tap.peers import Message, Tap, agent, answering, backend, request, said, text_of


async def test_a_judge_goes_to_its_own_endpoint(tap: Tap) -> None:
    """An agent and its judge call through one tap. Each call reaches its own server with its own key, and is recorded separately."""
    heard: list[Message] = []
    judged: list[Message] = []
    async with backend(answering(said("work"), requests=heard)) as url, backend(answering(said("fine"), requests=judged)) as elsewhere:
        await tap.point_at(f"{url}/v1", api_key="of-the-backend")
        worker = await tap.open()
        judge = await tap.open(elsewhere=UpstreamFacts(f"{elsewhere}/v1", "of-the-judge"), role="judge")
        answers = []
        for id in (worker, judge, worker):
            async with agent(tap.port) as caller:
                answers.append(text_of(await caller.ask(request(id))))

        assert ["work", "fine", "work"] == answers
        assert (["Bearer of-the-backend"] * 2, ["Bearer of-the-judge"]) == (
            [each.headers["authorization"] for each in heard],
            [each.headers["authorization"] for each in judged],
        )
        own, other = await tap.close(worker), await tap.close(judge)
        assert [("", "", True)] * 2 == [(call.role, call.endpoint, call.measured) for call in own]
        assert [("judge", f"{elsewhere}/v1", False)] == [(call.role, call.endpoint, call.measured) for call in other]


async def test_a_judge_keeps_its_endpoint(tap: Tap) -> None:
    """The endpoint of a judge does not change when the backend of the session does."""
    async with (
        backend(answering(said("one"))) as first,
        backend(answering(said("two"))) as second,
        backend(answering(said("fine"))) as elsewhere,
    ):
        await tap.point_at(f"{first}/v1")
        worker, judge = await tap.open(), await tap.open(elsewhere=UpstreamFacts(f"{elsewhere}/v1"))
        await tap.point_at(f"{second}/v1")
        answers = []
        for id in (worker, judge):
            async with agent(tap.port) as caller:
                answers.append(text_of(await caller.ask(request(id))))
        for id in (worker, judge):
            await tap.close(id)

    assert ["two", "fine"] == answers


async def test_an_invalid_endpoint(tap: Tap) -> None:
    """An invalid endpoint is refused when the attempt begins, with a sentence that names it."""
    with pytest.raises(InfraError, match=r"calls cannot be sent to nowhere: "):
        await tap.open(elsewhere=UpstreamFacts("nowhere"))
