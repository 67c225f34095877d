"""One run: a tap of its own between agents and the truth server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.quantiles import percentile
from pytest_agentbench.records import Json, LLMCall, RolloutKey
from pytest_agentbench.serving.labels import make_labels, new_id
from pytest_agentbench.serving.process import Child
from pytest_agentbench.tap.client import TapControl
from tests.benchmarks.measuring import BenchmarkError
from tests.benchmarks.timing.errors import Measured, added, agent_ttft, compare, joined, measured, model_key, size
from tests.benchmarks.truth import Served, Truth

PACE = "ttft=100-400,itl=20,tokens=100"
ROUNDS = 2  # calls of each stream, after one that warms up
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
    """What is run."""

    streams: int
    shape: str = "plain"  # one of SHAPES
    client: str = "whole"  # one of load.CLIENTS
    hogs: int = 0  # processes that do nothing but compute


class Tap:
    """A tap process, and the tokens that it was told of."""

    def __init__(self, folder: Path, upstream: str, ids: Sequence[str]) -> None:
        self.child = Child("pytest_agentbench.tap", {"token": "of-the-benchmark"}, folder / "tap.log")
        self._ports = self.child.ready()
        self.startup = self.cpu()
        self._ids = ids
        labels = make_labels(LABELS)
        label = {id: labels.label(new_id(RUN, RolloutKey("bench", id))).to_dict() for id in ids}
        opening = [{"op": "open", "id": id, "upgrade": True, "labels": label[id]} for id in ids]
        self._ask([{"op": "upstream", "url": upstream}, *opening])

    def url(self, id: str) -> str:
        return f"http://127.0.0.1:{self._ports['port']}/r/{id}/v1"

    def cpu(self) -> float:
        """Milliseconds of CPU so far."""
        cost = self.child.cost()
        if cost is None:
            raise BenchmarkError(self.child.obituary("is gone"))
        return cost["cpu_s"] * 1e3

    def records(self) -> list[LLMCall]:
        """All calls; the tokens are closed."""
        return [LLMCall.from_dict(call) for reply in self._ask([{"op": "close", "id": id} for id in self._ids]) for call in reply["calls"]]

    def _ask(self, questions: Sequence[Json]) -> list[Json]:
        async def ask() -> list[Json]:
            control = await TapControl.connect(self._ports["control_port"], "of-the-benchmark")
            try:
                return await asyncio.gather(*(control.ask(**question) for question in questions))
            finally:
                control.close()

        return asyncio.run(ask())


def run(case: Case, truth: Truth) -> Measured:
    """Raises BenchmarkError where something was lost on the way."""
    truth.take()  # what is left of others
    ids = [f"stream-{number}" for number in range(case.streams)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbench-timing-")))
        tap = Tap(folder, truth.url, [*ids, "twins"])
        stack.callback(tap.child.stop)
        agents = {"client": case.client, "urls": [tap.url(id) for id in ids], "rounds": ROUNDS, "schedule": PACE + SHAPES[case.shape]}
        load = stack.enter_context(driver(folder / "load.log", agents))
        twins = {"client": "twins", "twins": {"straight": truth.url, "tapped": tap.url("twins")}}
        probe = stack.enter_context(driver(folder / "probe.log", twins))
        stack.enter_context(hogs(case.hogs))
        before = tap.cpu()
        times, durations = drive(load, probe)
        records = tap.records()
        return judged(times, durations, records, truth.take(), tap.startup, tap.cpu() - before)


def drive(load: Child, probe: Child) -> tuple[dict[str, list[Any]], dict[str, dict[str, int]]]:
    """Times of the agents' calls, and durations of the twins beside them."""
    for child in (load, probe):
        proceed(child)
    times = load.ready(LIMIT)["times"]
    proceed(probe)
    return times, probe.ready(LIMIT)


def judged(
    times: dict[str, list[Any]],
    durations: dict[str, dict[str, int]],
    records: Sequence[LLMCall],
    served: Sequence[Served],
    startup: float,
    cpu: float,
) -> Measured:
    """What the run comes to; `startup` and `cpu` are the tap's, in milliseconds."""
    calls = [(key, call) for call in records if (key := model_key(call)) in times]
    requests = [request for request in served if request.key in times]
    twins = [request for request in served if request.key.startswith("twin-")]
    own = agent_ttft({key: (began, first) for key, (began, first, _) in times.items() if first is not None}, requests)
    tokens = sum(call.completion_tokens or 0 for call in records if model_key(call) != "warm-up")
    return measured(
        compare(joined(calls, requests)),
        startup=startup,
        cpu=cpu / tokens * 1e3,
        added_p50=percentile(added(durations["straight"], durations["tapped"], twins), 50),
        agent_p50=size(own, 50),
        agent_p99=size(own, 99),
    )


@contextmanager
def driver(log: Path, spec: Json) -> Iterator[Child]:
    """Agents that are ready to begin."""
    child = Child("tests.benchmarks.timing.load", spec, log)
    try:
        child.ready(LIMIT)
        yield child
    finally:
        child.stop()


def proceed(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.write(b"\n")
    child.process.stdin.flush()


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Processes that compute for as long as the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()
