"""Answers the questions of tests. Part of the pool process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import assert_never

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.records import Access, Rollout, RolloutKey
from pytest_agentbench.rollouts import inline_protocol as inline
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.pool.controller_link import ControllerLink
from pytest_agentbench.rollouts.pool.model_addresses import Addresses, number_of
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.pool.scheduler import Outcome, Scheduler
from pytest_agentbench.rollouts.questions_of_tests import (
    BackendReady,
    FoundScenario,
    GetBackend,
    GetRollout,
    GetScenario,
    PlanAccepted,
    PlanSelected,
    QuestionRefused,
    RecordedRollout,
    UnrecordedRollout,
    WorkerAnswer,
    WorkerQuestion,
)
from pytest_agentbench.runs.attempts import AttemptState, RolloutRead
from pytest_agentbench.runs.journal import rollout_of

TestQuestion = WorkerQuestion | inline.InlineQuestion
TestAnswer = WorkerAnswer | inline.InlineAnswer
FROM_TEST: Messages[TestQuestion] = Messages(TestQuestion)


class AnswersForTests:
    """Answers the questions of test processes: about the plan, rollouts, scenarios, the backend and addresses at the tap.

    Only the first plan counts, because all workers of a session select the same tests.

    Not thread-safe: all methods run on the event loop.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        addresses: Addresses,
        link: ControllerLink,
        state: AttemptState,
        record: Callable[[Rollout], Awaitable[bytes]],
    ) -> None:
        """Takes objects of the pool, and its function that has a rollout written to the journal and returns the line there."""
        self._runner, self._scheduler, self._addresses, self._link = runner, scheduler, addresses, link
        self._state, self._record = state, record
        self._planned = state.plan is not None
        self.cancelled = False  # whether pytest itself is about to end the session
        self.unread = +(state.plan or Counter())  # planned rollout -> number of tests that have not requested it yet
        self.booted = asyncio.Event()  # set if the backend answers, or if it is known that it never will
        self._round: asyncio.Task[None] | None = None  # waits for a round of trials that no test requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the questions of one test process, one at a time, until it disconnects."""
        while True:
            writer.write(await self._answer_frame(*await wire.read(reader)))
            await writer.drain()

    async def _answer_frame(self, header: object, body: bytes) -> bytes:
        """Returns the frame that answers a question of a test. Any error becomes a refusal, so that the test does not wait for ever."""
        try:
            question = FROM_TEST.read(header)
        except ValueError as error:
            return wire.pack(QuestionRefused(str(error), "infra_error"))
        try:
            return wire.pack(*await self._answer(question, body))
        except Exception as error:
            why = str(error) if isinstance(error, InfraError) else f"the pool failed on {type(question).__name__}: {cause(error)}"
            return wire.pack(QuestionRefused(why, "infra_error"))

    async def _answer(self, question: TestQuestion, body: bytes) -> tuple[TestAnswer, bytes]:  # noqa: PLR0911 - one for each question
        match question:
            case GetRollout(key):
                return await self._rollout(key)
            case inline.SubmitRollout():
                return inline.WrittenRecord(), await self._record(rollout_of(body))
            case PlanSelected():
                return await self._plan(question), b""
            case GetScenario(key):
                return FoundScenario(codec.plain(self._runner.scenario(key))), b""
            case GetBackend():
                return await self._backend(), b""
            case inline.LendAddress(key, access):
                return await self._open(key, access), b""
            case inline.ReturnAddress(id):
                await self._wait_for_taps(id)
                return inline.ReturnedCalls(tuple(await self._addresses.close(id))), b""
            case inline.TakeModelReplies(id):
                await self._wait_for_taps(id)
                return inline.ModelReplies(tuple(await self._addresses.said(id))), b""
            case inline.TakeConversation(key, calls):
                return inline.FoundConversation(tuple(await self._addresses.conversation(key, calls))), b""
            case _:
                assert_never(question)

    async def _plan(self, plan: PlanSelected) -> PlanAccepted:
        """Plans the rollouts that tests need. Ignores all plans but the first, because all workers of a session select the same tests."""
        if not self._planned:
            self._planned = True
            stored = len(self._scheduler.stored.keys() & set(plan.keys))
            self.unread.update(plan.keys)
            answer, _ = await self._link.ask(protocol.PlanMade(plan.keys, stored, plan.selected))
            self._scheduler.plan(plan.keys)
            self.add_round(answer.beside)
        return PlanAccepted()

    def add_round(self, keys: Sequence[RolloutKey]) -> None:
        """Queues trials that no test requests, if any. The controller gets `PlanSettled` when all rollouts are finished."""
        if keys:
            self._scheduler.plan(keys)
            self._round = asyncio.create_task(self._tell_when_settled())

    async def _tell_when_settled(self) -> None:
        self._link.tell(protocol.PlanSettled(await self._scheduler.settled()))

    async def _rollout(self, key: RolloutKey) -> tuple[RecordedRollout | UnrecordedRollout, bytes]:
        outcome: Outcome = await self._scheduler.outcome(key)
        self.unread.subtract([key])
        self._link.tell(RolloutRead(key))
        shared_cause, over = self._scheduler.cause(key, outcome) or None, await self._is_over(key, outcome)
        if not outcome.recorded:
            return UnrecordedRollout(outcome.status, outcome.reason, shared_cause, over), b""
        body = self._scheduler.body(key)
        return RecordedRollout(shared_cause, over), body if body is not None else (await self._link.ask(protocol.GetRecord(key)))[1]

    async def _is_over(self, key: RolloutKey, outcome: Outcome) -> bool:
        """Returns whether no further test can judge anything: tests still need rollouts, but none of these has or can get a record.

        Returns False if more rollouts of this rollout's group (suite and variant) may start, if the session was cancelled, if this
        machine lacks something that the backend needs, or if this rollout has a record that a test can judge.
        """
        if not self._scheduler.is_given_up(key):
            return False  # The outcome concerns this rollout only.
        if self.cancelled or outcome.status == "missing" or (outcome.recorded and not self._scheduler.cause(key, outcome)):
            return False
        if self._scheduler.broken:
            await self._scheduler.drained()  # Running rollouts may still get a record.
        left = [key for key, tests in self.unread.items() if tests > 0]
        return bool(left) and not any(map(self._scheduler.is_judgeable, left))

    async def _wait_for_backend(self) -> None:
        """Asks the controller to boot the backend, if it boots on demand. Waits until the backend answers or is known to have failed."""
        await self._link.connected.wait()
        if not self.booted.is_set():
            self._link.tell(protocol.StartBackend())
        await self.booted.wait()
        await self._scheduler.available.wait()

    async def _backend(self) -> BackendReady | QuestionRefused:
        await self._wait_for_backend()
        endpoint, why, status = self._addresses.endpoint, self._scheduler.broken, self._scheduler.broken_status
        if endpoint is None or (why and status == "infra_error"):
            return QuestionRefused(why, status)
        return BackendReady(dataclasses.replace(endpoint, api_key=None, headers={}))

    async def _wait_for_taps(self, token: str) -> None:
        """Waits until this pool is connected to the taps, if an earlier pool has opened the address `token` for a test."""
        address = self._state.addresses.get(number_of(token))
        if address is not None and address.lent:
            await self.booted.wait()

    async def _open(self, key: RolloutKey, access: Access) -> inline.LentAddress | QuestionRefused:
        await self._wait_for_backend()
        try:
            return inline.LentAddress(await self._addresses.lend(key, access))
        except InfraError as error:
            return QuestionRefused(str(error), self._scheduler.broken_status)
