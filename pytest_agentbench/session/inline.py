"""Runs a rollout in the test's own call stack, so that a debugger can step through the agent. The pool records it as usual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pytest

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.threads import no_threads
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Access, Json, KeptCall, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.inline_protocol import LendAddress, ReturnAddress, SubmitRollout, TakeConversation, TakeModelReplies
from pytest_agentbench.rollouts.rollout import prepare, run_rollout
from pytest_agentbench.rollouts.user_errors import AGENT, errors_kept, keep
from pytest_agentbench.runs.journal import record_line, rollout_of
from pytest_agentbench.session.debugger import QUIT, USER_ERRORS
from pytest_agentbench.session.pool_connection import PoolConnection
from pytest_agentbench.session.recorder import RunRecorder
from pytest_agentbench.suites.suite import Suite


class PooledTap:
    """Asks the pool to open and close addresses (URLs of the tap, the recording proxy) for an agent in a test process.

    Raises the errors of `PoolConnection.ask`.
    """

    def __init__(self, pool: PoolConnection) -> None:
        self._pool = pool

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        return self.open_now(key, access)

    def open_now(self, key: RolloutKey, access: Access) -> ModelAddress:
        """Opens an address (a URL of the tap) for the calls of one rollout. Like `open`, but not async."""
        return self._pool.ask(LendAddress(key, access))[0].address

    async def said(self, id: str) -> list[Json]:
        return [*self._pool.ask(TakeModelReplies(id))[0].messages]

    async def close(self, id: str) -> tuple[LLMCall, ...]:
        return self.close_now(id)

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        return [*self._pool.ask(TakeConversation(key, (*calls,)))[0].messages]

    def close_now(self, id: str) -> tuple[LLMCall, ...]:
        """Closes the address (a URL of the tap) with this id, and returns the calls that were made through it."""
        return self._pool.ask(ReturnAddress(id))[0].calls


def run_inline(
    item: pytest.Item, pool: PoolConnection, recorder: RunRecorder, suites: Mapping[str, Suite], key: RolloutKey, sizes: Sizes
) -> Rollout:
    """Runs the rollout of a test in this process, without budgets and retries, and returns its record. Only reads an existing record.

    Keeps the exceptions of agent and scorers in the stash of the test, for a debugger.
    """
    with suppress(KeyError):  # The agent does not run in an `except` block, so that its exceptions do not have this one as their context.
        return rollout_of(recorder.recorded(key))
    with errors_kept(QUIT) as item.stash[USER_ERRORS]:
        rollout = _run(pool, suites[key.suite], key, sizes)
    return submit(pool, rollout)


def _run(pool: PoolConnection, suite: Suite, key: RolloutKey, sizes: Sizes) -> Rollout:
    scenario = next(each for each in suite.scenarios if each.id == key.scenario)
    started_at, started = time.time(), time.monotonic_ns()
    try:
        with no_threads():
            return asyncio.run(run_rollout(key, scenario, prepare(suite, key.variant, sizes), PooledTap(pool), None, budget=None))
    except (InfraError, ConfigError) as error:
        keep(AGENT, error)
        ended = time.monotonic_ns()
        return Rollout(*key, status="infra_error", reason=str(error), started_at=started_at, started_ns=started, ended_ns=ended)


def submit(pool: PoolConnection, rollout: Rollout) -> Rollout:
    """Records a rollout. Returns it as it was written, redacted. Raises InfraError if it could not be written."""
    return rollout_of(pool.ask(SubmitRollout(), record_line(rollout))[1])


@contextmanager
def adhoc(pool: PoolConnection, name: str) -> Iterator[LLM]:
    """Yields a client for calls by hand. Its calls are recorded as a rollout of kind `adhoc`, which counts in no mean."""
    tap = PooledTap(pool)
    address = tap.open_now(RolloutKey("", name), Access())
    llm = LLM(address.base_url, address.model, facts=address.facts)
    started_at, started = time.time(), time.monotonic_ns()
    try:
        yield llm
    finally:
        calls = tap.close_now(address.id)
        record = Rollout(
            suite="",
            scenario=name,
            variant="default",
            trial=1,
            status="ok",
            started_at=started_at,
            started_ns=started,
            ended_ns=time.monotonic_ns(),
            calls=calls,
            turns=len(calls),
            messages=tuple(llm.transcript),
            settings={"model": llm.model},
            kind="adhoc",
        )
        submit(pool, record)
