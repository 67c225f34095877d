"""A rollout in the test's own call stack, so that a debugger can walk through the agent. Its record takes the usual way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Protocol

from pytest_agentbench.errors import ConfigError, InfraError, MissingError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.sizes import Sizes
from pytest_agentbench.lib.threads import no_threads
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.llm.model_facts import ModelFacts
from pytest_agentbench.records import Access, Json, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.rollout import prepare, run_rollout
from pytest_agentbench.runs.journal import record_line, rollout_of
from pytest_agentbench.session.recorder import Ledger
from pytest_agentbench.suites.suite import Suite


class WorkerConnection(Protocol):
    """The worker's line to the pool."""

    def ask(self, question: Json, body: bytes = b"") -> wire.Frame: ...


class PooledTap:
    """The tap, asked through the pool."""

    def __init__(self, asker: WorkerConnection) -> None:
        self._asker = asker

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        return self.open_now(key, access)

    def open_now(self, key: RolloutKey, access: Access) -> ModelAddress:
        """Raises InfraError when there is no backend, MissingError when this machine lacks what it needs."""
        answer, _ = answered(self._asker, {"op": "open", "key": key, "access": asdict(access)})
        return ModelAddress(answer["id"], answer["base_url"], answer["model"], ModelFacts(**answer["facts"]))

    async def said(self, id: str) -> list[Json]:
        said: list[Json] = json.loads(answered(self._asker, {"op": "said", "id": id})[1])
        return said

    async def close(self, id: str) -> tuple[LLMCall, ...]:
        return self.close_now(id)

    def close_now(self, id: str) -> tuple[LLMCall, ...]:
        """The calls made under this id; raises InfraError when nobody can tell them any more."""
        return codec.each_received(LLMCall, json.loads(answered(self._asker, {"op": "close", "id": id})[1]))


def answered(asker: WorkerConnection, question: Json, body: bytes = b"") -> wire.Frame:
    """The pool's answer; raises InfraError where it is a refusal, MissingError when this machine lacks what it needs."""
    answer, content = asker.ask(question, body)
    if answer.get("reason"):
        raise (MissingError if answer["status"] == "missing" else InfraError)(answer["reason"])
    return answer, content


def run_inline(asker: WorkerConnection, ledger: Ledger, suites: Mapping[str, Suite], key: RolloutKey, sizes: Sizes) -> Rollout:
    """Runs one rollout here and now, without budgets and retries, and hands it to the journal; one that ran is read from there."""
    try:
        return rollout_of(ledger.recorded(key))
    except KeyError:
        return submitted(asker, _run(asker, suites[key.suite], key, sizes))


def _run(asker: WorkerConnection, suite: Suite, key: RolloutKey, sizes: Sizes) -> Rollout:
    scenario = next(each for each in suite.scenarios if each.id == key.scenario)
    started_at, started = time.time(), time.monotonic_ns()
    try:
        with no_threads():
            return asyncio.run(run_rollout(key, scenario, prepare(suite, key.variant, sizes), PooledTap(asker), None, budget=None))
    except (InfraError, ConfigError) as error:
        ended = time.monotonic_ns()
        return Rollout(*key, status="infra_error", reason=str(error), started_at=started_at, started_ns=started, ended_ns=ended)


def submitted(asker: WorkerConnection, rollout: Rollout) -> Rollout:
    """The rollout as it stands in the journal, redacted; raises InfraError when it could not be written."""
    return rollout_of(answered(asker, {"op": "submit"}, record_line(rollout))[1])


@contextmanager
def adhoc(asker: WorkerConnection, name: str) -> Iterator[LLM]:
    """An LLM for a test to call by hand; what it called is journaled as a rollout of kind `adhoc`, which no mean counts."""
    tap = PooledTap(asker)
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
        submitted(asker, record)
