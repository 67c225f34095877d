"""Messages between controller and pool are decoded as they were sent, and questions are distinguished from notes."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.wire import header
from pytest_agentbench.records import Attempt, Endpoint, LLMCall, Rollout, RolloutKey, Score
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.protocol import FROM_PIPE, BlockedBy, BlockSettings, FromPipe, PoolConfig
from pytest_agentbench.runs.attempts import (
    AddressClosed,
    AddressOpened,
    AttemptBegun,
    AttemptFailed,
    EndRollout,
    LabelReleased,
    OpenLabel,
    PoolEntry,
    PrepareBlock,
    RolloutRead,
    RolloutTally,
    RunAlone,
)
from pytest_agentbench.runs.nodes import NodeCpu, NodeRecord
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.tap.protocol import TapPorts
from tests.rollouts.pool.test_server import pool_settings, shop

KEY = RolloutKey("shop", "shop-0", "hot", 2)
TALLY = RolloutTally(labelled=3, announced=2)
ENDPOINT = Endpoint("http://127.0.0.1:9/v1", "m", api_key="hush", roles={"judge": {"model": "j"}}, request_fields={"seed": None})
TAPS = TapPorts(4711, (4712, 4713), "secret")
END = Rollout(*KEY, status="agent_error", reason="it blocked the event loop", log="hello\n")
ATTEMPT = Attempt(1, "infra_error", "interrupted", 2, 10, 20, calls=(LLMCall(11, 12, 13),))
UNSCORED = Rollout(*KEY, status="ok", answer="A lamp.", scores={"tsq": Score(0.5)}, score_errors={"slow": "it blocked"})

TO_POOL: list[protocol.ToPool] = [
    protocol.PlanTaken((KEY,)),
    protocol.RecordLine(),
    protocol.BlockNoted(),
    protocol.TemplateVerdict(again=True),
    protocol.QuestionFailed("the disk is full"),
    protocol.Start(ENDPOINT, (ENDPOINT,), TAPS, 1.5, {"image": "no Dockerfile"}),
    protocol.Turn(ENDPOINT, "salt"),
    protocol.NoTurn("no GPU"),
    protocol.ArmLost("b", "no GPU"),
    protocol.HoldAttempts({"tap": "", "template of shop": "shop"}),
    protocol.AddRound((KEY, KEY)),
    protocol.NothingRuns("no GPU", "missing"),
    protocol.Cancel("a test failed"),
    protocol.NodesQueued(waits=True),
    protocol.EndSession(),
    protocol.TapsRestarted(TAPS),
    protocol.BackendMoved(ENDPOINT),
    RunAlone((KEY,)),
    EndRollout(END),
    protocol.CatchUp(7),
    protocol.ProcessesChecked(),
]
TO_CONTROLLER: list[protocol.ToController] = [
    protocol.PlanMade((KEY, KEY), 1, {"shop-hot": 2}),
    protocol.RolloutFinished(KEY, "scenario", "ok", {"tsq": 0.5}, 10, 2, 1.5),
    protocol.GetRecord(KEY),
    protocol.BlockBegun(None),
    protocol.BlockBegun(4),
    protocol.BlockEnded(),
    protocol.TemplateLost("template of shop", "shop"),
    protocol.TemplateLost("template of shop", "shop", (KEY,)),
    RolloutRead(KEY),
    AttemptBegun(KEY, 7),
    AttemptFailed(KEY, ATTEMPT, interrupted=True),
    AddressOpened("1.1", KEY, lent=True, label=None, tally=TALLY),
    AddressOpened("1.2", KEY, lent=False, label=OpenLabel("r-1", ENDPOINT.url), tally=TALLY),
    AddressClosed("1.1", 2, unreleased=True, tally=TALLY),
    LabelReleased("r-1", TALLY),
    protocol.CheckProcesses(),
    protocol.CaughtUp(7),
    protocol.TemplateServes("template of shop"),
    protocol.StartBackend(),
    PrepareBlock("b", 3),
    protocol.PlanSettled(whole=False),
    protocol.ShowUser("hello"),
    protocol.Drained(TALLY),
    NodeRecord(1, "w1", "gpu-1", 4, 8, 0, "3.11", "2026-03-04T05:06:07+00:00"),
    NodeCpu(1, "w1", {"tap": ((1, 2, 0.5),)}),
]
TO_PIPE: list[FromPipe] = [protocol.ShowUser("hello"), BlockedBy(END), BlockedBy(UNSCORED)]


def over_the_wire(message: object) -> object:
    """Returns the header of a message as another process gets it."""
    return json.loads(json.dumps(header(message)))


def names(messages: typing.Iterable[object]) -> list[str]:
    return [type(message).__name__ for message in messages]


@pytest.mark.parametrize("message", TO_POOL, ids=names(TO_POOL))
def test_to_the_pool(message: protocol.ToPool) -> None:
    """A message of the controller is decoded as it was sent."""
    assert message == protocol.TO_POOL.read(over_the_wire(message))


@pytest.mark.parametrize("message", TO_CONTROLLER, ids=names(TO_CONTROLLER))
def test_to_the_controller(message: protocol.ToController) -> None:
    """A message of the pool is decoded as it was sent, also one with a record in it."""
    assert message == protocol.TO_CONTROLLER.read(over_the_wire(message))


@pytest.mark.parametrize("message", TO_PIPE, ids=names(TO_PIPE))
def test_the_pipe(message: FromPipe) -> None:
    """A message in the pool's pipe is decoded as it was sent."""
    assert message == FROM_PIPE.read(over_the_wire(message))


def test_no_message_is_left_out() -> None:
    """Both unions contain all messages of the module, and the tables above contain all of them."""
    assert {*typing.get_args(protocol.ToPool)} == {*map(type, TO_POOL)}
    assert {*typing.get_args(protocol.ToController)} == {*map(type, TO_CONTROLLER)}
    assert {*typing.get_args(FromPipe)} == {*map(type, TO_PIPE)}


def test_questions_and_notes() -> None:
    """The type of a message says whether it is a question or a note. Each question names an answer that the pool knows."""
    questions = {*protocol.ControllerQuestion.__subclasses__()}
    answers = {typing.get_args(question.__orig_bases__[0])[0] for question in questions}  # type: ignore[attr-defined]

    assert questions | {*typing.get_args(protocol.PoolNote)} == {*typing.get_args(protocol.ToController)}
    assert set() == questions & {*typing.get_args(protocol.PoolNote)}
    assert {*typing.get_args(PoolEntry)} < {*typing.get_args(protocol.PoolNote)}
    assert {*typing.get_args(protocol.ControllerAnswer)} == answers | {protocol.QuestionFailed}


def test_a_damaged_message() -> None:
    """A wrong field is refused in a sentence that names it, down to the fields of records."""
    name, fields = json.loads(json.dumps(header(AttemptFailed(KEY, ATTEMPT, interrupted=True))))
    fields["attempt"]["calls"][0]["received_ns"] = "late"

    with pytest.raises(ValueError, match=r"^attempt\.calls\[0\]\.received_ns is a text, not a whole number$"):
        protocol.TO_CONTROLLER.read([name, fields])


def test_the_config_of_a_pool() -> None:
    """A pool's config is decoded as it was sent, with and without blocks."""
    blocks = BlockSettings({"hot": VariantOrigin("default", "b")}, "cold", in_sequence=True, own={"b": 3})

    for config in (PoolConfig("secret", 3, 4, pool_settings(shop(), blocks=each), 2, Path("reports/run"), 4711) for each in (None, blocks)):
        assert config == codec.received(PoolConfig, json.loads(json.dumps(codec.plain(config))))
