"""What another process receives of a record."""

from __future__ import annotations

from typing import TypeVar

from pytest_agentbench.lib import codec, json_text

Record = TypeVar("Record")


def sent(record: Record) -> Record:
    """Returns the record after a way through JSON, as messages take it."""
    return codec.received(type(record), json_text.loads(json_text.dumps_any(codec.plain(record))))
