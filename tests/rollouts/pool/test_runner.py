"""Attempts with a real tap: when they begin, which count as interrupted, and which are not made at all."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import JUDGE, Endpoint, LLMCall, Rollout, RolloutKey, Score
from pytest_agentbench.rollouts.pool.block_switch import FirstCallOnly
from pytest_agentbench.rollouts.pool.controller_link import ControllerLink
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted, Outages
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.protocol import (
    Answered,
    CheckProcesses,
    ControllerQuestion,
    PoolNote,
    ShowUser,
    TemplateLost,
    TemplateServes,
    TemplateVerdict,
)
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptBegun, AttemptState, Interruption
from pytest_agentbench.sandbox import factory
from pytest_agentbench.sandbox.bubblewrap import Bubblewrap
from pytest_agentbench.sandbox.factory import Slots
from pytest_agentbench.sandbox.sandbox import BUBBLEWRAP, CodePlace
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite, Task
from pytest_agentbench.tap.protocol import TapPorts
from tests.rollouts.pool.test_model_addresses import NOTHING, addresses
from tests.rollouts.pool.test_server import pool_settings
from tests.tap.peers import Handler, answering, backend, read_message, response, said, until

pytestmark = pytest.mark.timeout(60)

KEY, OTHER, HOT = RolloutKey("shop", "s-0"), RolloutKey("shop", "s-1"), RolloutKey("shop", "s-0", "hot")
SCENARIO = Scenario("s-0", ({"role": "user", "content": "A lamp?"},), expected=({"tool": "find"},), metadata={"answer": "Yes."})

CALLED = [AttemptBegun, AddressOpened, AddressClosed]  # messages about an attempt that has called its model
FAULT = response(b'{"error": {"message": "it is full"}}', 500)

OWN = LLMCall(11, 12, 13)
SEARCH = LLMCall(14, 15, 16, role="search")
ELSEWHERE = LLMCall(17, 18, 19, role="search", endpoint="http://127.0.0.1:8/v1")
JUDGED = LLMCall(20, 21, 22, role=JUDGE)

CODE = """
import asyncio
import os
import signal

from pytest_agentbench.records import Answer, Score
from pytest_agentbench.sandbox.sandbox import BUBBLEWRAP, CodePlace

class Caller:
    async def run(self, scenario, llm, tools):
        answers = [(await llm.chat(scenario.messages)).text for _ in range(2)]
        return Answer(answers[-1])

class Coder:
    code_place = CodePlace(BUBBLEWRAP)
    async def run(self, scenario, llm, tools):
        return Answer("")

class Killer:
    async def run(self, scenario, llm, tools):
        os.kill(os.getppid(), signal.SIGKILL)
        await asyncio.sleep(60)

def polite(scenario, rollout):
    return Score(0.5)

def broken(scenario, rollout):
    raise ValueError("it is broken")
"""


@pytest.fixture
def folder(forgotten_modules: Path) -> Path:
    """Returns a suite's folder with code of its own."""
    (forgotten_modules / "own.py").write_text(CODE)
    return forgotten_modules


def shop(folder: Path, agent: str = "Caller", scorer: str = "polite", task: Task | None = None, **more: Any) -> Suite:
    scenarios = replace(SCENARIO, task=task), replace(SCENARIO, id="s-1")
    dataset = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 2)
    names = {"agent": {"kind": f"./own.py:{agent}"}, "variants": {"hot": {"temperature": 1.0}}, "scorers": {f"./own.py:{scorer}": {}}}
    return Suite("shop", folder, scenarios, dataset=dataset, **{**names, **more})


class Host(ControllerLink):
    """A controller and a host in one. It plans nothing, knows which parts have died, and lets template processes start again."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[PoolNote] = []
        self.outages = Outages(self.tell)
        self.dead: Mapping[str, str] = {}  # part that has died -> group, reported when the pool asks

    def tell(self, message: PoolNote) -> None:
        self.notes.append(message)
        if isinstance(message, CheckProcesses):
            self.outages.update(self.dead)
            self.outages.answer()

    async def ask(self, question: ControllerQuestion[Answered], body: bytes = b"") -> tuple[Answered, bytes]:
        del body
        assert isinstance(question, TemplateLost)
        return TemplateVerdict(again=True), b""  # type: ignore[return-value]  # the answer to this question

    def hold(self, part: str, group: str) -> None:
        self.outages.add(part, group)

    def give_up(self, group: str, reason: str) -> None:
        raise AssertionError(f"{group} is given up: {reason}")

    @property
    def kinds(self) -> list[type[PoolNote]]:
        """Returns the classes of the messages that were sent."""
        return [type(each) for each in self.notes]


NO_STATE = AttemptState()


@asynccontextmanager
async def running(
    suite: Suite, taps: TapPorts, host: Host, url: str = NOTHING.url, left: AttemptState = NO_STATE, **settings: Any
) -> AsyncIterator[Runner]:
    """Yields the runner of session 3. Calls of its attempts go to a backend."""
    endpoint = Endpoint(url, "m", context_length=8192)
    async with addresses(taps, endpoint, secrets.token_hex(16), host.tell) as opened:
        runner = Runner(pool_settings(suite, session=3, **settings), opened, host.outages, host, host, left)
        try:
            yield runner
        finally:
            await runner.close()


def acting(action: Callable[[], object], answer: bytes) -> Handler:
    """Returns a connection handler that runs a function for each request before it answers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_message(reader)
            action()
            writer.write(answer)
            await writer.drain()

    return handle


async def test_an_attempt(folder: Path, taps: TapPorts) -> None:
    """The record has the measured values and the session's number.

    The host gets a message when the attempt begins, before it can make calls.
    """
    host = Host()
    async with backend(answering(said("Yes."))) as url, running(shop(folder), taps, host, f"{url}/v1") as runner:
        rollout = await runner.run(KEY)

    assert (KEY, "ok", 3, "Yes.", 2) == (rollout.key, rollout.status, rollout.session, rollout.answer, len(rollout.calls))
    assert {"polite": Score(0.5)} == rollout.scores
    assert CALLED == host.kinds
    begun = host.notes[0]
    assert isinstance(begun, AttemptBegun)
    assert KEY == begun.key
    assert begun.began_ns <= rollout.started_ns <= rollout.ended_ns


async def test_an_attempt_begins_when_it_has_its_sandbox(
    folder: Path, taps: TapPorts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that waits for a sandbox slot has not begun, so it cannot be responsible for deaths in that time."""
    try:
        probe = Bubblewrap("the sandbox of a test", CodePlace(BUBBLEWRAP))
        await probe.start()
        await probe.end()
    except InfraError as why:
        pytest.skip(f"NOT TESTED: bubblewrap; {why}")
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(factory, "_NOTICE_AFTER", 0.0)  # The user is told about the first wait.
    host = Host()
    held = await Slots(1, print).take()
    async with running(shop(folder, "Coder"), taps, host, sandboxes=1) as runner:
        attempt = asyncio.create_task(runner.run(KEY))
        await until(lambda: host.notes, "the sentence that the attempt waits for a slot")
        waiting = host.kinds
        held.release()
        rollout = await attempt

    assert [ShowUser] == waiting
    assert [ShowUser, *CALLED] == host.kinds
    assert "ok" == rollout.status


async def test_an_attempt_whose_sandbox_cannot_be_opened(folder: Path, taps: TapPorts) -> None:
    """Without its sandbox an attempt never begins. Its record is an infra_error that says why the image is missing."""
    host = Host()
    async with running(shop(folder, task=Task("/nowhere", "0" * 16, "lamp:1")), taps, host) as runner:
        runner.set_unbuilt({"lamp:1": "the image lamp:1 cannot be built"})
        rollout = await runner.run(KEY)

    assert ("infra_error", "the image lamp:1 cannot be built", 3) == (rollout.status, rollout.reason, rollout.session)
    assert [CheckProcesses] == host.kinds


async def test_code_that_cannot_be_loaded(folder: Path, taps: TapPorts) -> None:
    """If the suite's code cannot be loaded, the record is an infra_error without calls, and the attempt never begins."""
    host = Host()
    async with running(shop(folder, "Lost"), taps, host) as runner:
        rollout = await runner.run(KEY)

    assert (KEY, "infra_error", 3, ()) == (rollout.key, rollout.status, rollout.session, rollout.calls)
    assert rollout.reason.startswith(f"{folder}/suite.yaml: agent './own.py:Lost' cannot be loaded: the module does not define 'Lost'")
    assert 0 < rollout.started_ns <= rollout.ended_ns
    assert rollout.started_at > 0
    assert [CheckProcesses] == host.kinds


@pytest.mark.parametrize("is_dead", [True, False])
async def test_an_attempt_without_a_tap(folder: Path, taps: TapPorts, is_dead: bool) -> None:
    """Without a tap the record is an infra_error. If the tap has died, the attempt counts as interrupted, with the same record."""
    host = Host()
    host.dead = {"tap": ""} if is_dead else {}
    async with running(shop(folder), taps, host) as runner:
        assert runner.addresses.taps is not None
        runner.addresses.taps.disconnect()
        try:
            rollout, is_interrupted = await runner.run(KEY), False
        except Interrupted as interruption:
            rollout, is_interrupted = interruption.rollout, True

    assert is_dead == is_interrupted
    assert ("infra_error", "the connection to the tap is closed", 3, ()) == (rollout.status, rollout.reason, rollout.session, rollout.calls)
    assert [*CALLED, CheckProcesses] == host.kinds


@pytest.mark.parametrize(
    ("key", "dead", "is_interrupted"),
    [
        (KEY, {}, False),
        (KEY, {"backend": ""}, True),
        (HOT, {"backend": ""}, True),
        (KEY, {"template of shop": "shop"}, True),
        (HOT, {"template of shop": "shop"}, False),
        (KEY, {"template of shop-hot": "shop-hot", "template of bank": "bank"}, False),
        (HOT, {"template of shop-hot": "shop-hot"}, True),
        (KEY, {"tap": ""}, False),
        (KEY, {"tap": "", "backend": ""}, True),
    ],
)
async def test_an_attempt_that_an_outage_interrupted(
    folder: Path, taps: TapPorts, key: RolloutKey, dead: dict[str, str], is_interrupted: bool
) -> None:
    """An outage counts only if the rollout uses the part and the outage began after the attempt. The tap's outage began before."""
    host = Host()
    host.outages.update({"tap": ""})
    host.dead = dead
    async with running(shop(folder), taps, host) as runner:
        if is_interrupted:
            with pytest.raises(Interrupted) as caught:
                await runner.run(key)
            rollout = caught.value.rollout
        else:
            rollout = await runner.run(key)

    assert (key, "infra_error", 3) == (rollout.key, rollout.status, rollout.session)
    assert {"connect"} == {call.error_kind for call in rollout.calls}
    assert [*CALLED, CheckProcesses] == host.kinds


@pytest.mark.parametrize("has_outage", [True, False])
async def test_an_attempt_that_was_answered_with_an_error(folder: Path, taps: TapPorts, has_outage: bool) -> None:
    """If all calls were answered, no question is sent. The attempt is interrupted if a death since its beginning is known."""
    host = Host()
    fault = acting(lambda: host.outages.update({"backend": ""} if has_outage else {}), FAULT)
    async with backend(fault) as url, running(shop(folder), taps, host, f"{url}/v1") as runner:
        if has_outage:
            with pytest.raises(Interrupted):
                await runner.run(KEY)
        else:
            assert "infra_error" == (await runner.run(KEY)).status

    assert CALLED == host.kinds


@pytest.mark.parametrize(("scorer", "is_interrupted"), [("polite", False), ("broken", True)])
async def test_an_outage_beside_an_attempt_that_went_well(folder: Path, taps: TapPorts, scorer: str, is_interrupted: bool) -> None:
    """A successful attempt is not repeated after an outage, unless a score is missing that may have needed the dead part."""
    host = Host()
    well = acting(lambda: host.hold("template of shop", "shop"), said("Yes."))
    async with backend(well) as url, running(shop(folder, scorer=scorer), taps, host, f"{url}/v1") as runner:
        if is_interrupted:
            with pytest.raises(Interrupted) as caught:
                await runner.run(KEY)
            rollout = caught.value.rollout
        else:
            rollout = await runner.run(KEY)

    assert ("ok", 3, is_interrupted) == (rollout.status, rollout.session, "broken" in rollout.score_errors)
    assert CALLED == host.kinds


async def test_a_score_that_is_missing_without_an_outage(folder: Path, taps: TapPorts) -> None:
    """A missing score without an outage is part of the record, and the attempt is not repeated."""
    host = Host()
    async with (
        backend(answering(said("Yes."))) as url,
        running(shop(folder, scorer="broken"), taps, host, f"{url}/v1") as runner,
    ):
        rollout = await runner.run(KEY)

    assert ("ok", ["broken"]) == (rollout.status, [*rollout.score_errors])


@pytest.mark.slow
async def test_a_template_process_that_dies(folder: Path, taps: TapPorts) -> None:
    """The attempt of the process's suite counts as interrupted. An attempt of another suite that fails at the same time does not."""
    host = Host()
    killer = shop(folder, "Killer", isolation="process")
    bank = replace(shop(folder), name="bank")
    async with running(killer, taps, host, suites={"shop": killer.for_pool(), "bank": bank.for_pool()}) as runner:
        interrupted, failed = await asyncio.gather(*map(runner.run, (KEY, RolloutKey("bank", "s-0"))), return_exceptions=True)
        await until(lambda: TemplateServes in host.kinds, "another template process")

    assert isinstance(interrupted, Interrupted)
    assert isinstance(failed, Rollout)
    assert "infra_error" == failed.status
    assert (1, 0) == (host.outages.count(KEY), host.outages.count(RolloutKey("bank", "s-0")))


@pytest.mark.parametrize("was_in_flight", [True, False])
async def test_a_rollout_that_has_to_end(folder: Path, taps: TapPorts, was_in_flight: bool) -> None:
    """The rollout does not run. Its record has the given end, and the calls of the attempt that was in flight when the pool died."""
    end = Rollout(*KEY, status="agent_error", reason="it blocked the event loop", log="hello\n")
    interrupted = {KEY: Interruption(5, "the pool died"), OTHER: Interruption(6, "the pool died")}
    left = AttemptState(ends={KEY: end}, interrupted=interrupted if was_in_flight else {})
    host = Host()
    async with running(shop(folder), taps, host, left=left) as runner:
        runner.addresses.left_calls = {KEY: [OWN, SEARCH, ELSEWHERE, JUDGED], OTHER: [OWN]}
        rollout = await runner.run(KEY)

    expected = replace(
        end,
        session=3,
        started_ns=5 if was_in_flight else rollout.ended_ns,
        calls=(OWN, SEARCH),
        other_calls=(ELSEWHERE, JUDGED),
        expected=SCENARIO.expected,
        reference="Yes.",
        turns=1,
        settings={"kind": "./own.py:Caller"},
    )
    assert expected == replace(rollout, started_at=0.0, ended_ns=0)
    assert rollout.started_at > 0
    assert rollout.ended_ns > 5
    assert [] == host.notes


async def test_a_rollout_that_has_to_end_without_a_score(folder: Path, taps: TapPorts) -> None:
    """Only the session's number and the judges' calls that were in flight are added to its record."""
    errors = {"slow": "it blocked the event loop"}
    end = Rollout(*KEY, "ok", started_ns=5, ended_ns=9, calls=(OWN,), other_calls=(ELSEWHERE,), scores={"a": Score(1)}, score_errors=errors)
    left = AttemptState(ends={KEY: end}, interrupted={KEY: Interruption(5, "the pool died")})
    host = Host()
    async with running(shop(folder), taps, host, left=left) as runner:
        runner.addresses.left_calls = {KEY: [JUDGED]}
        rollout = await runner.run(KEY)

    assert replace(end, session=3, other_calls=(ELSEWHERE, JUDGED)) == rollout
    assert [] == host.notes


async def test_rollouts_end_one_by_one(folder: Path, taps: TapPorts) -> None:
    """The end of one rollout does not affect others, and can be decided while the pool runs."""
    left = AttemptState(ends={HOT: Rollout(*HOT, status="infra_error", reason="the tap died of it")})
    host = Host()
    async with backend(answering(said("Yes."))) as url, running(shop(folder), taps, host, f"{url}/v1", left) as runner:
        ran = await runner.run(KEY)
        runner.ends[KEY] = Rollout(*KEY, status="infra_error", reason="the pool died of it")
        ended = [await runner.run(key) for key in (KEY, HOT)]

    assert "ok" == ran.status
    assert [("infra_error", "the pool died of it"), ("infra_error", "the tap died of it")] == [(each.status, each.reason) for each in ended]
    assert {"kind": "./own.py:Caller", "temperature": 1.0} == ended[1].settings
    assert CALLED == host.kinds
    assert {HOT} == left.ends.keys()


async def test_a_first_call(folder: Path, taps: TapPorts) -> None:
    """The agent runs as far as its tap allows, and is not scored. No AttemptBegun is sent, because this is not an attempt."""
    host = Host()
    async with backend(answering(said("Yes."))) as url, running(shop(folder), taps, host, f"{url}/v1") as runner:
        first, whole = [await runner.first_call(KEY, tap) for tap in (FirstCallOnly(runner.addresses), runner.addresses)]
        scored = await runner.run(KEY)

    assert first is not None
    assert whole is not None
    assert (KEY, 1, "ok", 2) == (first.key, len(first.calls), whole.status, len(whole.calls))
    assert [[], [], ["polite"]] == [[*scores] for scores in (whole.scores, whole.score_errors, scored.scores)]
    assert [AddressOpened, AddressClosed] * 2 + CALLED == host.kinds


async def test_a_first_call_of_code_that_cannot_be_loaded(folder: Path, taps: TapPorts) -> None:
    """If the code cannot be loaded, no first call is made and no address is opened. The rollout itself reports the fault."""
    host = Host()
    async with running(shop(folder, "Lost"), taps, host) as runner:
        assert await runner.first_call(KEY, runner.addresses) is None

    assert [] == host.notes


async def test_a_first_call_without_a_tap(folder: Path, taps: TapPorts) -> None:
    """A first call without a tap raises InfraError, which concerns the whole block."""
    host = Host()
    async with running(shop(folder), taps, host) as runner:
        assert runner.addresses.taps is not None
        runner.addresses.taps.disconnect()
        with pytest.raises(InfraError, match=r"^the connection to the tap is closed$"):
            await runner.first_call(KEY, runner.addresses)


@pytest.mark.parametrize(("budget", "seconds"), [(None, 40.0), (7.0, 7.0)])
async def test_the_longest_time_of_an_attempt(folder: Path, taps: TapPorts, budget: float | None, seconds: float) -> None:
    """The longest time of an attempt is the longest time limit of the suites, unless the session has one limit for all."""
    short, long = shop(folder, timeout=30.0), shop(folder, timeout=40.0)
    suites = {"short": short.for_pool(), "long": long.for_pool()}
    async with running(short, taps, Host(), suites=suites, budget=budget) as runner:
        assert seconds == runner.longest_s
