"""A program that takes part in a session as several node workers, and answers each lease with a stored record instead of a rollout.

The command is `python -m benchmarks.nodes.scripted SCRIPT`, where SCRIPT is a `Script` as JSON. When the session is over, the program
writes `Told` as JSON to stdout.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import Hello
from pytest_agentbench.rollouts.nodes.connection import versions
from pytest_agentbench.rollouts.nodes.joined_node import placed
from pytest_agentbench.rollouts.nodes.protocol import ROLE, AttemptEnded, AttemptStarted, Join, Joined, NodePointed, Tock
from pytest_agentbench.runs.journal import record_line, rollout_of

FRESH = 1.0  # seconds for which a record is used again, before its stamps are moved to the present


@dataclass(frozen=True)
class Script:
    """What the program does."""

    port: int  # where the session listens, on loopback
    token: str
    nodes: int
    slots: int  # of each node worker
    takes_s: float  # mean time of an attempt; each takes between nothing and twice as long
    record: str  # file with a record, whose scenario is replaced


@dataclass(frozen=True)
class Told:
    """What the program has measured."""

    leases: int
    first: float  # seconds, time.monotonic(), of the first `AttemptEnded`
    last: float  # seconds, time.monotonic(), of the last lease
    waits_ms: tuple[float, ...]  # each time from an `AttemptEnded` until a lease filled the slot again
    record_bytes: int
    cpu_s: float


class Nodes:
    """All node workers of one process.

    A slot that becomes free is filled by the next lease, of whichever node worker. So the times in which slots are free are those between
    the ends of attempts and the later leases, the oldest first.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._rollout = rollout_of(Path(script.record).read_bytes())
        self._name = f'"{self._rollout.scenario}"'.encode()
        self._line, self._fresh_until = b"", 0.0
        self._freed: deque[float] = deque()
        self._filled = 0
        self.waits: list[float] = []
        self.first = self.last = 0.0

    async def serve(self) -> None:
        await asyncio.gather(*(self._serve(number) for number in range(1, self._script.nodes + 1)))

    def told(self) -> Told:
        return Told(self._filled, self.first, self.last, tuple(self.waits), len(self._line), time.process_time())

    async def _serve(self, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._script.port, limit=1 << 20)
        package, python = versions()
        join = Join(f"scripted-{number}", f"scripted-{number}", 1, self._script.slots, 1, 0, package, python)
        for message in (Hello(self._script.token, ROLE), join):
            writer.write(wire.pack(message))
        try:
            while True:
                (name, fields), _ = await wire.read(reader)
                self._obey(writer, name, fields)
        except (EOFError, ConnectionError):
            writer.close()

    def _obey(self, writer: asyncio.StreamWriter, name: str, fields: Any) -> None:
        match name:
            case "Welcome":
                writer.write(wire.pack(Joined()))
            case "PointNode":
                writer.write(wire.pack(NodePointed(fields["number"], 0.1)))
            case "Tick":
                writer.write(wire.pack(Tock(fields["pool_ns"], time.monotonic_ns())))
            case "GiveLease":
                self._begin(writer, fields["lease"], fields["key"][1])
            case "NotAdmitted":
                raise SystemExit(f"not admitted: {fields['reason']}")
            case "Bye":
                writer.close()

    def _begin(self, writer: asyncio.StreamWriter, lease: int, scenario: str) -> None:
        self.last = time.monotonic()
        self._filled += 1
        if self._filled > self._script.nodes * self._script.slots:
            self.waits.append((self.last - self._freed.popleft()) * 1e3)
        writer.write(wire.pack(AttemptStarted(lease, time.monotonic_ns())))
        if self._script.takes_s:
            asyncio.get_running_loop().call_later(random.uniform(0, 2 * self._script.takes_s), self._end, writer, lease, scenario)
        else:
            self._end(writer, lease, scenario)

    def _end(self, writer: asyncio.StreamWriter, lease: int, scenario: str) -> None:
        now = time.monotonic()
        if now > self._fresh_until:
            moved = placed(self._rollout, time.monotonic_ns() - self._rollout.ended_ns)
            self._line, self._fresh_until = record_line(moved), now + FRESH
        self.first = self.first or now
        self._freed.append(time.monotonic())
        body = self._line.replace(self._name, f'"{scenario}"'.encode(), 1)
        writer.write(wire.pack(AttemptEnded(lease, time.monotonic_ns(), interrupted=False), body))


def main() -> None:
    nodes = Nodes(Script(**json.loads(sys.argv[1])))
    asyncio.run(nodes.serve())
    print(json.dumps(asdict(nodes.told())))


if __name__ == "__main__":
    main()
