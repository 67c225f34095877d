"""Turns the KV cache events that engines publish into lines of a file, for `kv_events.py`. It uses only the standard library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Name of an event of vLLM -> the event in the file, and the names of its fields in their order, for events that are sent as arrays.
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "BlockStored": ("stored", ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")),
    "BlockRemoved": ("removed", ("block_hashes", "medium")),
    "AllBlocksCleared": ("cleared", ()),
}
KEPT = {"block_hashes": "blocks", "parent_block_hash": "parent", "block_size": "block_size", "medium": "medium"}


def lines_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yields the events of one batch as an engine publishes it, `[seconds since 1970, events, rank]`. Other kinds of events are left out.

    Raises ValueError if it is not a batch.
    """
    try:
        at, events = float(batch[0]), list(batch[1])
        for event in events:
            named = dict(event) if isinstance(event, dict) else {"type": event[0]}
            if (known := EVENTS.get(named["type"])) is None:
                continue
            if not isinstance(event, dict):
                named |= zip(known[1], event[1:], strict=False)
            kept = {name: _plain(named[field]) for field, name in KEPT.items() if named.get(field) is not None}
            yield {"at": at, "event": known[0], **kept}
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"not a batch of KV events: {error!r}") from error


def _plain(value: Any) -> Any:
    """Returns a value for JSON. vLLM's hashes are integers or bytes; bytes become hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


class Publisher:
    """The subscription to the events of one engine. Batches are numbered, so missing ones are noticed."""

    def __init__(self, service: str, replica: int) -> None:
        self._engine = {"service": service, "replica": replica}
        self._expected: int | None = None  # number of the next batch; None before the first one

    def lines(self, number: int, batch: Any) -> Iterator[dict[str, Any]]:
        """Yields the lines for a batch and its number. A line `lost` is before them if batches are missing.

        An engine that was restarted begins with 0 again. Raises ValueError if it is not a batch.
        """
        events = [self._engine | line for line in lines_of(batch)]
        missing = 0 if self._expected is None else number - self._expected
        self._expected = number + 1
        if missing > 0:
            yield {**self._engine, "at": float(batch[0]), "event": "lost", "batches": missing}
        yield from events
