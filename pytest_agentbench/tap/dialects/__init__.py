"""The APIs that the tap understands, by the route that a call takes. A new one is a file here and a line in DIALECTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pytest_agentbench.tap.dialects import chat, completions, messages, responses
from pytest_agentbench.tap.dialects.reader import DialectReader

#: One API: what is changed in its requests, and, called, a new reading for one answer.
Dialect: TypeAlias = type[DialectReader]

DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": chat.ChatReader,
    "/completions": completions.CompletionsReader,
    "/responses": responses.ResponsesReader,
    "/messages": messages.MessagesReader,
}
