"""Compiles and starts the truth server (truth.c), an LLM server that records when it sent each event of its answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from benchmarks.measurement import BenchmarkError, BenchmarkSkipped
from pytest_agentbench.records import OUTPUT_KINDS

SOURCE = Path(__file__).with_name("truth.c")


class Event(NamedTuple):
    """One event of an answer, as the truth server recorded it. Times are monotonic nanoseconds."""

    kind: str  # as in records.Chunk; also `done`, and `answer` for one without streaming
    due_ns: int  # by the schedule
    sent_ns: int  # right before the server sent it
    after_ns: int  # right after
    tokens: int


class Served(NamedTuple):
    """One request and its answer, as the truth server recorded them."""

    key: str
    arrived_ns: int  # its last byte
    events: tuple[Event, ...]

    @property
    def output(self) -> list[Event]:
        """The events with content, reasoning or a tool call."""
        return [event for event in self.events if event.kind in OUTPUT_KINDS]


class Truth(NamedTuple):
    """A running truth server."""

    model: str  # name of its model; the name contains the schedule of answers to requests without one of their own
    port: int
    realtime: bool  # whether it runs with real-time priority

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def take(self) -> list[Served]:
        """Returns the requests that ended since the last call of this method."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", "/truth")
            lines = connection.getresponse().read().splitlines()
        finally:
            connection.close()
        return [_served(line) for line in lines]


@contextmanager
def truth_server(model: str = "truth/") -> Iterator[Truth]:
    """Runs a truth server for the `with` block. Raises BenchmarkSkipped without Linux or a C compiler."""
    with tempfile.TemporaryDirectory(prefix="agentbench-truth-") as folder:
        process = subprocess.Popen([compiled(Path(folder)), model], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with process:  # which closes its stdin in the end, and so ends it
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise BenchmarkError(f"the truth server ended with exit code {process.wait()} before it was ready")
            yield Truth(model, **json.loads(said))


def compiled(folder: Path) -> Path:
    """Compiles truth.c in a folder and returns the path of the program."""
    if sys.platform != "linux":
        raise BenchmarkSkipped(f"the truth server needs Linux, this is {sys.platform}")
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchmarkSkipped("the command `cc` is missing; install a C compiler for the truth server")
    program = folder / "truth"
    made = subprocess.run([compiler, "-O2", "-o", program, SOURCE], capture_output=True, text=True, check=False)
    if made.returncode:
        raise BenchmarkSkipped(f"`cc` cannot compile {SOURCE.name}:\n{made.stderr[-2000:]}")
    return program


def _served(line: bytes) -> Served:
    told = json.loads(line)
    return Served(told["key"], told["arrived"], tuple(Event(*event) for event in told["events"]))
