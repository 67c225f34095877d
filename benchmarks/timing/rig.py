"""Runs one case of the timing benchmark: agents call the truth server through a tap, or through a minimal relay."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.measurement import BenchmarkError
from benchmarks.timing.errors import Costs, Measured, added, agent_ttft, compare, joined, measured, model_key, size
from benchmarks.truth import Served, Truth
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Json, LLMCall, RolloutKey
from pytest_agentbench.stats.quantiles import percentile
from pytest_agentbench.tap.client import Answer, TapControl
from pytest_agentbench.tap.protocol import (
    AddressCalls,
    CloseAddress,
    OpenAddress,
    PointAt,
    TapConfig,
    TapDone,
    TapListening,
    ToTap,
    UpstreamFacts,
)
from pytest_agentbench.tap.routing_hints import make_labels, new_id

PACE = "ttft=100-400,itl=20,tokens=100"
LEAST_CALLS = 48  # of all streams together; those that warm up are not among them
ROUNDS = 2  # at least so many calls of each stream
LIMIT = 300  # seconds that a run may take

#: What makes the streams of a kind other than plain.
SHAPES = {
    "plain": "",
    "jittered": ",jitter=0.5",
    "engine steps": ",grid=20",
    "4 tokens a chunk": ",pack=4",
    "tool calls": ",kind=tool_call",
    "reasoning": ",kind=reasoning",
}

#: Computes, and ends when this process does.
HOG = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True:
    pass
"""

#: Labels that are added to all calls: those of Dynamo, which are the most, a header and fields of the body.
LABELS: Json = {"kind": "dynamo", "priority": 1, "osl": 100}
RUN = "20260101-120000-0123:"


@dataclass(frozen=True)
class Case:
    """One setting of the load: number and kind of the streams, the client, and processes that keep the CPU busy (hogs)."""

    streams: int
    shape: str = "plain"  # one of SHAPES
    client: str = "whole"  # one of load.CLIENTS
    hogs: int = 0  # processes that do nothing but compute

    @property
    def rounds(self) -> int:
        return max(ROUNDS, LEAST_CALLS // self.streams)


class Relay:
    """A process that forwards requests of agents to the server: a tap, or the minimal relay."""

    def __init__(self, module: str, config: object, folder: Path) -> None:
        self.child = Child(module, config, folder / "relay.log")
        self.ports = self.child.ready(TapListening)
        self.startup = self.cpu()

    def url(self, id: str) -> str:
        return f"http://127.0.0.1:{self.ports.port}/r/{id}/v1"

    def cpu(self) -> float:
        """Returns the milliseconds of CPU that the process has used so far."""
        cost = self.child.cost()
        if cost is None:
            raise BenchmarkError(self.child.exit_message("has ended"))
        return cost["cpu_s"] * 1e3

    def hand_over(self) -> list[LLMCall]:
        """Returns the recorded calls. A minimal relay records none."""
        return []


class Tap(Relay):
    """A tap with an open address for each stream."""

    def __init__(self, folder: Path, upstream: str, ids: Sequence[str]) -> None:
        super().__init__("pytest_agentbench.tap", TapConfig("of-the-benchmark"), folder)
        self._ids = ids
        labels = make_labels(LABELS)
        opening = [OpenAddress(id, upgrade=True, label=labels.label(new_id(RUN, RolloutKey("bench", id)))) for id in ids]
        self._ask([PointAt(UpstreamFacts(upstream)), *opening], TapDone)

    def hand_over(self) -> list[LLMCall]:
        """Closes the addresses and returns all calls."""
        return [call for reply in self._ask([CloseAddress(id) for id in self._ids], AddressCalls) for call in reply.calls]

    def _ask(self, questions: Sequence[ToTap], kind: type[Answer]) -> list[Answer]:
        async def ask() -> list[Answer]:
            control = await TapControl.connect(self.ports.control_port, "of-the-benchmark")
            try:
                return await asyncio.gather(*(control.ask(question, kind) for question in questions))
            finally:
                control.close()

        return asyncio.run(ask())


class Bare(Relay):
    """The minimal relay (`benchmarks.timing.bare`), which only forwards bytes and keeps the kernel's timestamps."""

    def __init__(self, folder: Path, upstream: str, ids: Sequence[str]) -> None:
        del ids  # it lets everybody through
        super().__init__("benchmarks.timing.bare", {"port": urlsplit(upstream).port}, folder)


class Driven(NamedTuple):
    """The raw results of a run, with the tap or with the minimal relay."""

    times: dict[str, list[Any]]  # of the agents' calls, by their own clock
    served: list[Served]  # requests as the server saw them
    records: list[LLMCall]  # what the relay wrote down
    costs: Costs
    startup: float  # milliseconds of CPU until the relay served


def run(case: Case, truth: Truth) -> Measured:
    """Runs a case with a tap and returns its errors and costs. Raises BenchmarkError if calls are missing or differ."""
    times, served, records, costs, startup = driven(case, truth, Tap)
    calls = [(key, call) for call in records if (key := model_key(call)) in times]
    requests = [request for request in served if request.key in times]
    own = agent_ttft({key: (began, first) for key, (began, first, _) in times.items() if first is not None}, requests)
    return measured(compare(joined(calls, requests)), costs, startup=startup, agent_p50=size(own, 50), agent_p99=size(own, 99))


def floor(case: Case, truth: Truth) -> Costs:
    """Runs a case with the minimal relay and returns its costs, which are a lower bound for the tap."""
    return driven(case, truth, Bare).costs


def driven(case: Case, truth: Truth, kind: type[Tap | Bare]) -> Driven:
    """Runs a case: starts a relay of this kind, lets agents and twins (pairs of equal calls) make their calls, and returns the results."""
    truth.take()  # what is left of others
    ids = [f"stream-{number}" for number in range(case.streams)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbench-timing-")))
        relay = kind(folder, truth.url, [*ids, "twins"])
        stack.callback(relay.child.stop)
        agents = {
            "client": case.client,
            "urls": [relay.url(id) for id in ids],
            "rounds": case.rounds,
            "schedule": PACE + SHAPES[case.shape],
        }
        load = stack.enter_context(driver(folder / "load.log", agents))
        twins = {"client": "twins", "twins": {"straight": truth.url, "tapped": relay.url("twins")}}
        probe = stack.enter_context(driver(folder / "probe.log", twins))
        stack.enter_context(hogs(case.hogs))
        before = relay.cpu()
        times, durations = drive(load, probe)
        records = relay.hand_over()
        cpu = relay.cpu() - before
    served = truth.take()
    return Driven(times, served, records, costs_of(cpu, durations, served), relay.startup)


def costs_of(cpu: float, durations: dict[str, dict[str, int]], served: Sequence[Served]) -> Costs:
    """Returns CPU per token and added latency of a relay. `cpu` is in milliseconds, `durations` has those of the twin calls."""
    relayed = [request for request in served if request.key != "warm-up" and not request.key.endswith("-straight")]
    tokens = sum(event.tokens for request in relayed for event in request.events)
    twins = [request for request in served if request.key.startswith("twin-")]
    return Costs(cpu / tokens * 1e3, percentile(added(durations["straight"], durations["tapped"], twins), 50))


def drive(load: Child, probe: Child) -> tuple[dict[str, list[Any]], dict[str, dict[str, int]]]:
    """Lets the load make its calls. Returns the times of these, and the durations of the twin calls made at the same time."""
    for child in (load, probe):
        proceed(child)
    times = load.ready(dict, LIMIT)["times"]
    proceed(probe)
    return times, probe.ready(dict, LIMIT)


@contextmanager
def driver(log: Path, spec: Json) -> Iterator[Child]:
    """Starts a `benchmarks.timing.load` process for the `with` block. Yields it when it is ready."""
    child = Child("benchmarks.timing.load", spec, log)
    try:
        child.ready(dict, LIMIT)
        yield child
    finally:
        child.stop()


def proceed(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.write(b"\n")
    child.process.stdin.flush()


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Runs processes that only use CPU, for the duration of the `with` block."""
    processes = [subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()
