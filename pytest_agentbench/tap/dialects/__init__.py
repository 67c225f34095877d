"""The APIs that the tap understands (dialects), by route. To add one, add a file here and a line to DIALECTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pytest_agentbench.tap.dialects import chat, completions, messages, responses
from pytest_agentbench.tap.dialects.reader import DialectReader

#: One API. Its static methods change requests, and its instances each read one answer.
Dialect: TypeAlias = type[DialectReader]

DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": chat.ChatReader,
    "/completions": completions.CompletionsReader,
    "/responses": responses.ResponsesReader,
    "/messages": messages.MessagesReader,
}
