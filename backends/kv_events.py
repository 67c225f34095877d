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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import zmq
from kv_event_lines import Publisher
from zmq.utils.monitor import recv_monitor_message

LATEST = 100_000  # messages that may wait for this program before ZeroMQ drops some


def serve_health(port: int, is_ready: threading.Event) -> None:
    """Starts the HTTP server that says whether all engines have accepted the subscription."""

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


def append(file: int, publisher: Publisher, message: list[bytes]) -> None:
    """Appends the events of a message, `[topic, number of the batch, batch]`, to a file. A message that is not one is logged."""
    try:
        lines = list(publisher.lines(int.from_bytes(message[1], "big"), msgspec.msgpack.decode(message[2])))
    except (ValueError, IndexError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"ignored a message that has no KV cache events: {error}\n")
        return
    os.write(file, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


if __name__ == "__main__":
    path, health, *rest = sys.argv[1:]
    subscribed = threading.Event()
    serve_health(int(health), subscribed)
    engines = {name: [int(port) for port in ports.split(",")] for name, _, ports in (word.partition("=") for word in rest)}
    record(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), engines, subscribed)
