"""The APIs that the tap understands, by the route that a call takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.chat import ChatReading
from pytest_agentbench.tap.dialects.completions import CompletionsReading
from pytest_agentbench.tap.dialects.messages import MessagesReading
from pytest_agentbench.tap.dialects.reader import DialectReading
from pytest_agentbench.tap.dialects.responses import ResponsesReading


class Dialect(Protocol):
    """One API."""

    @property
    def name(self) -> str: ...

    def __call__(self) -> DialectReading:
        """A new reading, for one answer."""
        ...

    def as_stream(self, asked: Json) -> bytes | None:
        """The body of a request that asks for the same as a stream; None where that cannot be, or is a stream already."""
        ...


DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": ChatReading,
    "/completions": CompletionsReading,
    "/responses": ResponsesReading,
    "/messages": MessagesReading,
}
