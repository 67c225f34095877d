"""Sends a record to another process, as far as a test needs it."""

from __future__ import annotations

from typing import TypeVar

from pytest_agentbench.lib import codec, json_text

Record = TypeVar("Record")


def sent(record: Record) -> Record:
    """Returns the record after conversion to JSON and back, as in a message."""
    return codec.received(type(record), json_text.loads(json_text.dumps_any(codec.plain(record))))
