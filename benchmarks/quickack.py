"""quickack: TTFT before a server without TCP_NODELAY and CPU time of the tap, with and without acknowledgements at once (TCP_QUICKACK)"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from uuid import uuid4

from benchmarks.measurement import BenchmarkSkipped, Figure, Options, Result
from pytest_agentbench.lib.process import Child
from pytest_agentbench.metrics.timings import ttft_ns
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import AddressCalls, CloseAddress, OpenAddress, PointAt, TapConfig, TapDone, TapListening, UpstreamFacts

TAPS = {"at once": "pytest_agentbench.tap", "delayed": "benchmarks.delaying_tap"}
PAUSES = (0.0, 0.02, 0.1)  # seconds between two calls on one connection
PREFILL = 0.008  # seconds from the head of an answer to its first event
CALLS = 20  # of a block with pauses
CPU_CALLS = 25  # of a block in which CPU time is measured
EVENTS = 200  # of an answer in which CPU time is measured, one each millisecond
BLOCKS = 4  # of each tap, in turns
TOKEN = "of-the-benchmark"
TTFT_LIMIT = 2.0  # milliseconds above PREFILL
CPU_LIMIT = 0.2  # milliseconds of CPU that a call of EVENTS may take more

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
LAST = b"0\r\n\r\n"
BODY = {"model": "tiny", "max_tokens": 2, "stream": True, "messages": [{"role": "user", "content": "hello there " * 20}]}


class Block(NamedTuple):
    """The calls of one block, and the CPU time that the tap took for them."""

    ttft_ms: list[float]
    cpu_ms: float  # of each call


def measure(options: Options) -> Result:
    if sys.platform != "linux":
        raise BenchmarkSkipped("only Linux has TCP_QUICKACK")
    return asyncio.run(compare(options.repeat or BLOCKS))


async def compare(blocks: int, url: str = "") -> Result:
    """Measures both taps in turns. `url` is the base URL of a server; without it, the server is `serve`, whose first event is late."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        base = url or stack.enter_context(serving(PREFILL))
        streaming = stack.enter_context(serving(0.0, EVENTS))
        taps = {name: stack.enter_context(tap(module, Path(folder) / f"{name}.log")) for name, module in TAPS.items()}
        found: dict[tuple[str, float], list[float]] = {}
        cpu: dict[str, list[float]] = {name: [] for name in TAPS}
        for number in range(blocks):
            for name in [*TAPS][:: -1 if number % 2 else 1]:
                for pause in PAUSES:
                    found.setdefault((name, pause), []).extend((await block(taps[name], base, CALLS, pause)).ttft_ms)
                cpu[name].append((await block(taps[name], streaming, CPU_CALLS, 0.0)).cpu_ms)
    return _result(found, cpu, 0.0 if url else PREFILL * 1e3)


def _result(found: dict[tuple[str, float], list[float]], cpu: dict[str, list[float]], prefill_ms: float) -> Result:
    rows = [f"| {pause * 1e3:.0f} ms | " + " | ".join(spread(found[name, pause]) for name in TAPS) + " |" for pause in PAUSES]
    header = ["| pause between calls | " + " | ".join(f"TTFT, {name}" for name in TAPS) + " |", "| ---: | ---: | ---: |"]
    costs = {name: median(values) for name, values in cpu.items()}
    more = costs["at once"] - costs["delayed"]
    figures = [
        *(Figure(f"quickack.ttft_{pause * 1e3:.0f}", median(found["at once", pause]) - prefill_ms, "ms", TTFT_LIMIT) for pause in PAUSES),
        Figure("quickack.cpu", max(0.0, more), "ms", CPU_LIMIT, f"{costs['at once']:.3f} and {costs['delayed']:.3f} a call"),
    ]
    each = "; ".join(f"{name} {', '.join(f'{value:.3f}' for value in values)}" for name, values in cpu.items())
    return Result(figures, [f"CPU of the tap in ms for each call, by block: {each}"], "\n".join([*header, *rows]))


def spread(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f}) ms"


@contextmanager
def tap(module: str, log: Path) -> Iterator[tuple[Child, TapListening]]:
    child = Child(module, TapConfig(TOKEN), log)
    try:
        yield child, child.ready(TapListening)
    finally:
        child.stop()


async def block(tap: tuple[Child, TapListening], url: str, calls: int, pause: float) -> Block:
    """Makes calls one after the other through a tap, on one connection to the server."""
    child, ports = tap
    control = await TapControl.connect(ports.control_port, TOKEN)
    id = uuid4().hex
    await control.ask(PointAt(UpstreamFacts(url)), TapDone)
    await control.ask(OpenAddress(id), TapDone)
    reader, writer = await asyncio.open_connection("127.0.0.1", ports.port)
    body = json.dumps(BODY).encode()
    head = (
        f"POST /r/{id}/v1/chat/completions HTTP/1.1\r\nhost: tap\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    before = cpu_ns(child)
    for _ in range(calls):
        writer.write(head.encode() + body)
        await reader.readuntil(LAST)
        await asyncio.sleep(pause)
    cost = (cpu_ns(child) - before) / calls / 1e6
    writer.close()
    records = (await control.ask(CloseAddress(id), AddressCalls)).calls
    control.close()
    return Block([ms(call) for call in records][1:], cost)


def ms(call: LLMCall) -> float:
    ttft = ttft_ns(call)
    assert ttft is not None, call.error
    return ttft / 1e6


def cpu_ns(child: Child) -> int:
    """Returns the CPU time of a process with one thread, nanoseconds."""
    return int(Path(f"/proc/{child.process.pid}/schedstat").read_text().split()[0])


@contextmanager
def serving(prefill: float, events: int = 1) -> Iterator[str]:
    """A server that writes the head, the events and the end one by one. Yields its base URL.

    It leaves out TCP_NODELAY if there is a single event. Several events come one each millisecond.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener, prefill, events), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def accept(listener: socket.socket, prefill: float, events: int) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # The listener is closed.
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, events > 1)
        threading.Thread(target=answer, args=(connection, prefill, events), daemon=True).start()


def answer(connection: socket.socket, prefill: float, events: int) -> None:
    with connection, connection.makefile("rb") as requests:
        while head := [*iter(lambda: requests.readline().strip(), b"")]:
            requests.read(next(int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length")))
            connection.sendall(HEAD)
            time.sleep(prefill)
            for place in range(events):
                if place:
                    time.sleep(0.001)
                connection.sendall(chunk(EVENT))
            connection.sendall(chunk(END) + LAST)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
