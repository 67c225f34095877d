"""Writes the KV cache events of engines to a file: `python kv_events.py FILE HEALTH_PORT SERVICE=PORT,PORT...`.

Engines publish over ZeroMQ which blocks of their KV cache they store and remove. vLLM and SGLang do so with `--kv-events-config`, and
Dynamo's mocker with `--zmq-kv-events-ports`, in the same format. SERVICE is a service of the stack, with the port of each of its replicas
in their order. FILE gets a line of JSON for each event. The script needs pyzmq and msgspec, which the environments of Dynamo and vLLM
have. `http://127.0.0.1:HEALTH_PORT/` answers 200 as soon as all engines have accepted the subscription, and 503 before that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Name of an event of vLLM -> the event in the file, and the names of its fields in their order, for events that are sent as arrays.
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "BlockStored": ("stored", ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")),
    "BlockRemoved": ("removed", ("block_hashes", "medium")),
    "AllBlocksCleared": ("cleared", ()),
}
KEPT = {"block_hashes": "blocks", "parent_block_hash": "parent", "block_size": "block_size", "medium": "medium"}
LATEST = 100_000  # messages that may wait for this program before ZeroMQ drops some


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

    def lines(self, parts: list[bytes]) -> Iterator[dict[str, Any]]:
        """Yields the lines for a message: `[topic, number of the batch, batch]`. A line `lost` is before them if batches are missing.

        An engine that was restarted begins with 0 again.
        """
        import msgspec

        number, batch = int.from_bytes(parts[1], "big"), msgspec.msgpack.decode(parts[2])
        events = [self._engine | line for line in lines_of(batch)]
        if self._expected is not None and number > self._expected:
            yield {**self._engine, "at": float(batch[0]), "event": "lost", "batches": number - self._expected}
        self._expected = number + 1
        yield from events


def serve_health(port: int, is_ready: threading.Event) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if is_ready.is_set() else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", port), Health).serve_forever, daemon=True).start()


def record(file: int, services: dict[str, list[int]], is_ready: threading.Event) -> None:
    """Subscribes to all engines and appends their events to a file, for as long as the program runs."""
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    context, poller = zmq.Context(), zmq.Poller()
    publishers, waiting = {}, {}
    for service, ports in services.items():
        for replica, port in enumerate(ports):
            socket = context.socket(zmq.SUB)
            socket.set(zmq.RCVHWM, LATEST)
            socket.set(zmq.SUBSCRIBE, b"")
            waiting[monitor := socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)] = socket
            socket.connect(f"tcp://127.0.0.1:{port}")
            publishers[socket] = Publisher(service, replica)
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            if socket in publishers:
                append(file, publishers[socket], socket.recv_multipart())
                continue
            recv_monitor_message(socket)
            poller.unregister(socket)
            waiting.pop(socket).disable_monitor()
            if not waiting:
                is_ready.set()


def append(file: int, publisher: Publisher, parts: list[bytes]) -> None:
    try:
        lines = list(publisher.lines(parts))
    except (ValueError, IndexError) as error:
        print(f"ignored a message: {error}", file=sys.stderr, flush=True)
        return
    os.write(file, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


if __name__ == "__main__":
    path, health, *rest = sys.argv[1:]
    subscribed = threading.Event()
    serve_health(int(health), subscribed)
    engines = {name: [int(port) for port in ports.split(",")] for name, _, ports in (word.partition("=") for word in rest)}
    record(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), engines, subscribed)
