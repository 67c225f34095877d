"""What a test in whose process a rollout ran is told when the pool cannot answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pytest_agentbench.errors import InfraError, MissingError
from pytest_agentbench.lib import wire
from pytest_agentbench.records import Access, Json, Rollout, RolloutKey
from pytest_agentbench.session.inline import PooledTap, submitted


class Refusing:
    """A line to a pool that is gone."""

    def __init__(self, status: str) -> None:
        self.status = status

    def ask(self, question: Json, body: bytes = b"") -> wire.Frame:
        return {"status": self.status, "reason": f"no answer to {question['op']}: the pool is gone", "over": True}, body[:0]


async def closed(line: Refusing) -> None:
    await PooledTap(line).close("1")


async def told(line: Refusing) -> None:
    await PooledTap(line).said("1")


async def opened(line: Refusing) -> None:
    await PooledTap(line).open(RolloutKey("shop", "shop-0"), Access())


async def written(line: Refusing) -> None:
    submitted(line, Rollout("shop", "shop-0", "default", 1, "ok"))


@pytest.mark.parametrize("question", [closed, told, opened, written], ids=["close", "said", "open", "submit"])
@pytest.mark.parametrize(("status", "error"), [("infra_error", InfraError), ("missing", MissingError)])
async def test_a_refusal_is_no_answer(question: Callable[[Refusing], Awaitable[None]], status: str, error: type[Exception]) -> None:
    """Calls that nobody can tell are not an empty list of calls, and a record that was not written is not empty: it is an error."""
    with pytest.raises(error, match="the pool is gone"):
        await question(Refusing(status))
