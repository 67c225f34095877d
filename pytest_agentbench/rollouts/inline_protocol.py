"""Messages between the pool and a test process that calls a model itself, for an inline rollout or for the fixture `llm`.

They use the connection of `worker_protocol`. The test process requests an address, calls the model there through the tap, and returns the
address. The answer contains the records of its calls. Then the test process submits the rollout that it has made from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.records import Access, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.worker_protocol import PoolQuestion


@dataclass(frozen=True)
class LentAddress:
    """The answer to `LendAddress`. The address remains valid if the pool dies."""

    address: ModelAddress


@dataclass(frozen=True)
class LendAddress(PoolQuestion[LentAddress]):
    """Requests an address at which a model answers. The pool answers when the backend is ready and the taps know the address."""

    key: RolloutKey  # for the fixture `llm` the suite is empty, and the scenario is the test's node id
    access: Access


@dataclass(frozen=True)
class ReturnedCalls:
    """The answer to `ReturnAddress`: the calls that were made at the address."""

    calls: tuple[LLMCall, ...]


@dataclass(frozen=True)
class ReturnAddress(PoolQuestion[ReturnedCalls]):
    """Ends an address. The pool has the taps cancel calls in progress, and releases the rollout at the backend."""

    id: str


@dataclass(frozen=True)
class ModelReplies:
    """The answer to `TakeModelReplies`."""

    messages: tuple[Json, ...]  # messages of the assistant since the last request


@dataclass(frozen=True)
class TakeModelReplies(PoolQuestion[ModelReplies]):
    """Requests the model's messages at an address whose access has `keep`. The taps cancel calls in progress."""

    id: str


@dataclass(frozen=True)
class WrittenRecord:
    """The answer to `SubmitRollout`. The frame's body is the redacted line in the journal."""


@dataclass(frozen=True)
class SubmitRollout(PoolQuestion[WrittenRecord]):
    """Submits a rollout that ran in the test process. The frame's body is its line for the journal.

    The pool completes the rollout and sends it to the controller.
    """


InlineQuestion = LendAddress | ReturnAddress | TakeModelReplies | SubmitRollout
InlineAnswer = LentAddress | ReturnedCalls | ModelReplies | WrittenRecord
