"""Messages between the pool and a test process that calls a model itself, for an inline rollout or for the fixture `llm`.

An inline rollout runs inside its test. These messages use the connection of `worker_protocol`. The test process requests an address at
the tap (the recording proxy), calls the model there, and returns the address. The answer contains the records of its calls. Then the test
process submits the rollout that it has made from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.records import Access, Json, KeptCall, LLMCall, RolloutKey
from pytest_agentbench.rollouts.questions_of_tests import PoolQuestion


@dataclass(frozen=True)
class LentAddress:
    """The answer to `LendAddress`: the address at the tap. It remains valid if the pool dies."""

    address: ModelAddress


@dataclass(frozen=True)
class LendAddress(PoolQuestion[LentAddress]):
    """Requests an address at the tap for calls of a model. The pool answers when the backend is ready and the taps know the address."""

    key: RolloutKey  # for the fixture `llm` the suite is empty, and the scenario is the test's node id
    access: Access


@dataclass(frozen=True)
class ReturnedCalls:
    """The answer to `ReturnAddress`: the calls that were made at the address."""

    calls: tuple[LLMCall, ...]


@dataclass(frozen=True)
class ReturnAddress(PoolQuestion[ReturnedCalls]):
    """Ends an address. The pool has the taps cancel calls in progress, and tells the backend that the rollout has ended."""

    id: str  # token of the address


@dataclass(frozen=True)
class ModelReplies:
    """The answer to `TakeModelReplies`: what the model has answered at the address."""

    messages: tuple[Json, ...]  # assistant messages since the last request


@dataclass(frozen=True)
class TakeModelReplies(PoolQuestion[ModelReplies]):
    """Requests the model's messages at an address for which the taps keep them (`keep`). The taps cancel calls in progress."""

    id: str  # token of the address


@dataclass(frozen=True)
class FoundConversation:
    """The answer to `TakeConversation`: the requested conversation of the agent with the model."""

    messages: tuple[Json, ...]  # messages of Chat Completions; empty if the session does not keep what was requested


@dataclass(frozen=True)
class TakeConversation(PoolQuestion[FoundConversation]):
    """Requests the conversation that ends with the last of some calls, which were made at closed addresses of a rollout."""

    key: RolloutKey
    calls: tuple[KeptCall, ...]  # successful calls of the agent, in their order


@dataclass(frozen=True)
class WrittenRecord:
    """The answer to `SubmitRollout`: the rollout is in the journal. The frame's body is its redacted line there."""


@dataclass(frozen=True)
class SubmitRollout(PoolQuestion[WrittenRecord]):
    """Submits the record of a rollout that ran in the test process, as the frame's body.

    The pool adds the session's number and hashes of what the rollout depends on. The controller then writes the record to the journal.
    """


InlineQuestion = LendAddress | ReturnAddress | TakeModelReplies | TakeConversation | SubmitRollout
InlineAnswer = LentAddress | ReturnedCalls | ModelReplies | FoundConversation | WrittenRecord
