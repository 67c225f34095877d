"""The messages between a test process and the pool, and the cost of importing them."""

from __future__ import annotations

import json
import subprocess
import sys
import typing

import pytest

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.wire import OtherVersion, Refused, header
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.llm.client import ModelFacts
from pytest_agentbench.records import SHARE, Access, Endpoint, Json, KeptCall, LLMCall, RolloutKey
from pytest_agentbench.rollouts.inline_protocol import (
    FoundConversation,
    LendAddress,
    LentAddress,
    ModelReplies,
    ReturnAddress,
    ReturnedCalls,
    SubmitRollout,
    TakeConversation,
    TakeModelReplies,
    WrittenRecord,
)
from pytest_agentbench.rollouts.pool.answers_for_tests import FROM_TEST, TestQuestion
from pytest_agentbench.rollouts.questions_of_tests import (
    BackendReady,
    FoundScenario,
    GetBackend,
    GetRollout,
    GetScenario,
    PlanAccepted,
    PlanSelected,
    PoolAddress,
    PoolQuestion,
    QuestionRefused,
    RecordedRollout,
    SuiteInfo,
    UnavailableSuite,
    UnrecordedRollout,
    WorkerInput,
    WorkerSuite,
    read_answer,
)

KEY = RolloutKey("shop", "shop-0", "hot", 2)
SCENARIO: Json = {"id": "shop-0", "messages": [{"role": "user", "content": "A lamp?"}]}
ENDPOINT = Endpoint("http://127.0.0.1:9/v1", "m", roles={"judge": {"model": "j"}}, request_fields={"seed": None})
ADDRESS = ModelAddress("1-x", "http://127.0.0.1:9/r/1-x/v1", "m", ModelFacts({"max_tokens": "max_completion_tokens"}, 4096))

CONVERSATION: list[tuple[TestQuestion, list[object]]] = [
    (PlanSelected((KEY, KEY), {"shop-hot": 2}), [PlanAccepted()]),
    (
        GetRollout(KEY),
        [
            RecordedRollout(None, over=False),
            RecordedRollout("no GPU", over=True),
            UnrecordedRollout("cancelled", "a test failed", None, over=False),
        ],
    ),
    (GetScenario(KEY), [FoundScenario(SCENARIO)]),
    (GetBackend(), [BackendReady(ENDPOINT), QuestionRefused("no GPU", "missing")]),
    (LendAddress(KEY, Access(keep=True, endpoint={"model": "j"}, limits={"calls": 3})), [LentAddress(ADDRESS)]),
    (ReturnAddress("1-x"), [ReturnedCalls((LLMCall(11, 12, 13),))]),
    (TakeConversation(RolloutKey("shop", "s-0"), (KeptCall("f1", "n1", "r1"),)), [FoundConversation(({"role": "user", "content": "Hi"},))]),
    (TakeModelReplies("1-x"), [ModelReplies(()), ModelReplies(({"role": "assistant", "content": "No."},))]),
    (SubmitRollout(), [WrittenRecord()]),
]


def over_the_wire(message: object) -> object:
    """Returns the header of a message as another process gets it."""
    return json.loads(json.dumps(header(message)))


@pytest.mark.parametrize(("question", "answers"), CONVERSATION, ids=[type(question).__name__ for question, _ in CONVERSATION])
def test_questions_and_answers(question: TestQuestion, answers: list[object]) -> None:
    """Each question is decoded as it was sent, and so are the answers that its class names, and refusals."""
    assert question == FROM_TEST.read(over_the_wire(question))
    for answer in (*answers, QuestionRefused("the pool is full", "infra_error")):
        assert answer == read_answer(question, over_the_wire(answer))


def test_the_answer_to_another_question() -> None:
    """An answer that a question does not name is refused in a sentence. A refusal because of another version is raised."""
    with pytest.raises(ValueError, match=r"^the message 'PlanAccepted' is unknown; known are: BackendReady, QuestionRefused, Refused$"):
        read_answer(GetBackend(), header(PlanAccepted()))
    with pytest.raises(OtherVersion, match=r"^both need the same version$"):
        read_answer(GetBackend(), header(Refused("both need the same version")))


def test_every_question_is_known() -> None:
    """The pool can read all question classes of the modules."""
    assert {*PoolQuestion.__subclasses__()} == {*typing.get_args(TestQuestion)} == {type(question) for question, _ in CONVERSATION}


def test_worker_input() -> None:
    """A worker gets the controller's data unchanged, also for suites that do not run and sessions without a pool."""
    info = SuiteInfo("shop", "A shop.", ("s-0", "s-1"), ("default",), 2, {"tsq": 0.5, "tsq.mean": 1}, ("tsq",), "hand", {"s-1": "flaky"})
    suite = WorkerSuite(info, sizes={"hot": 3}, scales={"tsq": SHARE}, unsupported={"s-0": "a GPU"})
    missing = UnavailableSuite("bank", marks=False, reason="the data set is not here", skip=True)
    whole = WorkerInput({"/a/shop": suite}, {"/a/bank": missing}, 3, {"shop": ("tsq",)}, PoolAddress(4711, "secret"), inline=True)

    for sent in (whole, WorkerInput()):
        assert sent == codec.received(WorkerInput, json.loads(json.dumps(codec.plain(sent))))
    assert {"/a/shop": suite, "/a/bank": missing} == whole.every_suite
    assert "secret" not in repr(whole)


def test_its_import_is_light() -> None:
    """With pytest and the records imported, this protocol imports no asyncio, HTTP library, YAML, suites or tap."""
    heavy = {"asyncio", "aiohttp", "yaml", "pydantic", "pytest_agentbench.suites.suite", "pytest_agentbench.tap"}
    protocol = "pytest_agentbench.rollouts.questions_of_tests"
    code = (
        f"import sys, pytest, pytest_agentbench.records; before = {{*sys.modules}}; import {protocol}; print(*sys.modules.keys() - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert protocol in loaded
    assert set() == heavy & {*loaded}
