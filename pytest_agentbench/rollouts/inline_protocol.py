"""Messages between the pool and a test process that calls a model itself: for an inline rollout, or for the fixture `llm`.

They travel on the connection of `worker_protocol`. The test process asks for an address, calls the model there through the tap, and closes
the address, which gives it the records of its calls. Then it hands in the rollout that it has made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.records import Access, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.worker_protocol import PoolQuestion


@dataclass(frozen=True)
class LentAddress:
    """The answer to `LendAddress`. The address outlives a pool that dies."""

    address: ModelAddress


@dataclass(frozen=True)
class LendAddress(PoolQuestion[LentAddress]):
    """Asks for an address at which a model answers. The pool answers when the backend is ready and the taps know the address."""

    key: RolloutKey  # its suite is empty for a test that calls by hand; the scenario is the test's node id then
    access: Access


@dataclass(frozen=True)
class ReturnedCalls:
    """The answer to `ReturnAddress`: the calls that were made there."""

    calls: tuple[LLMCall, ...]


@dataclass(frozen=True)
class ReturnAddress(PoolQuestion[ReturnedCalls]):
    """Ends an address. The pool has the taps break off calls in progress, and tells the backend that the rollout is over."""

    id: str


@dataclass(frozen=True)
class ModelReplies:
    """The answer to `TakeModelReplies`."""

    messages: tuple[Json, ...]  # of the assistant, since they were last asked for


@dataclass(frozen=True)
class TakeModelReplies(PoolQuestion[ModelReplies]):
    """Asks what the model said at an address whose access has `keep`. The taps break off calls in progress."""

    id: str


@dataclass(frozen=True)
class WrittenRecord:
    """The answer to `SubmitRollout`. The frame's body is the line as it is in the journal, redacted."""


@dataclass(frozen=True)
class SubmitRollout(PoolQuestion[WrittenRecord]):
    """Hands in a rollout that ran in the test process. The frame's body is its line for the journal.

    The pool completes the rollout and sends it to the controller.
    """


InlineQuestion = LendAddress | ReturnAddress | TakeModelReplies | SubmitRollout
InlineAnswer = LentAddress | ReturnedCalls | ModelReplies | WrittenRecord
