"""The seam between the server and what decides its answers: a request goes in, a Reply comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field

from pytest_agentbench.engine.config import Milliseconds
from pytest_agentbench.lib.config import Spec

TokenCount = Annotated[int, Field(ge=0)]  # of the answer, sent before something happens


class ReplyCall(NamedTuple):
    """One tool call of an answer."""

    name: str
    arguments: Mapping[str, Any] | str  # a text is sent as it is, so that it may be malformed


class Stall(Spec):
    """A pause in the middle of an answer."""

    after: TokenCount
    ms: Milliseconds  # how much later everything behind it arrives


class Delivery(Spec):
    """How one answer is sent, faults included; the defaults are the engine's own pace and no fault."""

    ttft_ms: Milliseconds | None = None  # instead of the engine's
    itl_ms: Milliseconds | None = None  # instead of the engine's
    tokens_per_chunk: int = Field(default=1, ge=1)
    stall: Stall | None = None
    split_utf8: bool = False  # writes end inside a multi-byte character
    status: int | None = Field(default=None, ge=400, le=599)  # HTTP status of an error answer
    message: str = "The script answers this request with an error."  # of that error
    retry_after: float | None = Field(default=None, ge=0)  # seconds, its Retry-After header
    malformed_json_after: TokenCount | None = None  # then an event that is no JSON
    error_event_after: TokenCount | None = None  # then an error inside the 200
    cut_after: TokenCount | None = None  # then the connection is closed
    empty: bool = False  # a 200 without a body
    exit: bool = False  # the process dies


AS_USUAL = Delivery()


@dataclass(frozen=True)
class PolicyReply:
    """What a policy answers: text, then tool calls."""

    text: str = ""
    tool_calls: tuple[ReplyCall, ...] = ()
    finish_reason: str | None = None  # None: what the answer itself says, stop or tool_calls
    delivery: Delivery = AS_USUAL


class Policy(Protocol):
    """Decides answers. It sees the request body, which the server has checked, and nothing else."""

    def reply(self, request: Mapping[str, Any]) -> PolicyReply: ...
