"""Whole sessions with node workers: how the rate grows with their number, what a rollout costs there, and how long sessions keep going."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.endurance import Sample, watched
from benchmarks.measurement import BenchmarkError, Cost, machine_cpu, pytest_command, run_pytest
from benchmarks.nodes.scripted import Script, Told
from benchmarks.workplace import SUITE, Workplace, calls_of, hundred, processes, workplace
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.journal import record_line

SLOTS = 16  # of a node worker
CALLS = 3  # of a rollout
ANSWER_MS = 1000.0  # after which the engine answers a call
TOKENS = 64  # of each answer; a record then has 15 kB
BUSY = 0.7  # share of the machine's CPU above which scaling is limited by it
OVERHEAD_NODES, IN_FLIGHT = 3, 12
LONG_NODES = 8
START = 60.0  # seconds in which a session has to listen for node workers

NO_MESSAGES = "--agentbench-keep=none"


@dataclass(frozen=True)
class Rate:
    """The rollouts per second of a session with local node workers, and the CPU of the machine meanwhile."""

    nodes: int
    per_s: float
    cpu: float  # share of all cores, of all processes
    seconds: float  # in which all node workers had work

    @property
    def is_cpu_bound(self) -> bool:
        return self.cpu > BUSY


def rate(nodes: int, waves: int) -> Rate:
    """Runs `waves` rollouts in each slot of `nodes` local node workers, and returns the rate while all of them have work."""
    turns = [CALLS - 1] * (nodes * SLOTS * waves)
    with workplace() as place, cpu_samples() as samples:
        place.suite(turns)
        place.backend(TOKENS, ttft_ms=ANSWER_MS)
        run_pytest(place.root, f"--agentbench-concurrency={nodes * SLOTS}", f"--agentbench-nodes=local:{nodes}", SUITE)
        place.last_run(calls_of(turns))
        rollouts = place.last_rollouts()
    names = {rollout.node for rollout in rollouts}
    if len(names) != nodes:
        raise BenchmarkError(f"{len(names)} node workers made rollouts instead of {nodes}; some were lost or never joined")
    begin = max(min(each.started_ns for each in rollouts if each.node == name) for name in names)
    end = max(rollout.started_ns for rollout in rollouts)
    made = sum(share(rollout, begin, end) for rollout in rollouts)
    (first, cpu_first), (last, cpu_last) = nearest(samples, begin), nearest(samples, end)
    cpu = (cpu_last - cpu_first) / ((last - first) / 1e9) / (os.cpu_count() or 1)
    return Rate(nodes, made / ((end - begin) / 1e9), cpu, (end - begin) / 1e9)


def share(rollout: Rollout, begin: int, end: int) -> float:
    """Returns the part of a rollout between two times: 1 if all of it is, 0.5 if half of it is."""
    inside = min(rollout.ended_ns, end) - max(rollout.started_ns, begin)
    return max(0, inside) / (rollout.ended_ns - rollout.started_ns)


@contextmanager
def cpu_samples(every: float = 0.2) -> Iterator[list[tuple[int, float]]]:
    """Collects (monotonic nanoseconds, CPU seconds of all processes of this machine) during the block."""
    samples = [(time.monotonic_ns(), machine_cpu())]
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(every):
            samples.append((time.monotonic_ns(), machine_cpu()))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def nearest(samples: Sequence[tuple[int, float]], at: int) -> tuple[int, float]:
    return min(samples, key=lambda sample: abs(sample[0] - at))


@dataclass(frozen=True)
class Arm:
    """The CPU seconds for each rollout of sessions in one arm, without their start and end."""

    each_s: float
    engine_s: float  # the engine's part

    @property
    def own_s(self) -> float:
        return self.each_s - self.engine_s


def overhead_pair(few: int, many: int) -> tuple[Arm, Arm]:
    """Runs sessions with `few` and `many` hundreds of rollouts, without node workers and with them. Returns both arms."""
    with workplace() as place:
        place.backend(tokens=20)
        costs = [(_cost(place, count, ()), _cost(place, count, (f"--agentbench-nodes=local:{OVERHEAD_NODES}",))) for count in (few, many)]
    more = (many - few) * 100
    arms = []
    for side in (0, 1):
        (total_few, engine_few), (total_many, engine_many) = costs[0][side], costs[1][side]
        arms.append(Arm((total_many - total_few) / more, (engine_many - engine_few) / more))
    return arms[0], arms[1]


def _cost(place: Workplace, hundreds: int, arguments: Sequence[str]) -> tuple[float, float]:
    """Returns the CPU seconds of a session and of its engine."""
    turns = hundred() * hundreds
    place.suite(turns)
    cost = run_pytest(place.root, f"--agentbench-concurrency={IN_FLIGHT}", *arguments, SUITE)
    return cost.cpu_s, processes(place.last_run(calls_of(turns)))["engine"]


@dataclass(frozen=True)
class Long:
    """A session with scripted node workers."""

    cost: Cost
    samples: list[Sample]
    told: Told
    pool_cpu_s: float

    @property
    def per_s(self) -> float:
        return len(self.told.waits_ms) / (self.told.last - self.told.first)


def record_of(place: Workplace) -> Path:
    """Runs one rollout and stores its record, for scripted node workers."""
    place.suite([CALLS - 1])
    place.backend(TOKENS)
    run_pytest(place.root, NO_MESSAGES, SUITE)
    file = place.root / "record.json"
    file.write_bytes(record_line(place.last_rollouts()[0]))
    return file


def long_session(place: Workplace, record: Path, rollouts: int, test: str) -> Long:
    """Runs a session whose rollouts are made by scripted node workers, which answer at once. `test` is the text of its test file."""
    place.suite([CALLS - 1] * rollouts, test)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = (f"--agentbench-nodes-listen=127.0.0.1:{port}", f"--agentbench-concurrency={LONG_NODES * SLOTS}")
    before = {*place.runs}
    command = pytest_command(place.root, *listen, NO_MESSAGES, SUITE)
    script = Script(port, _token(place, before), LONG_NODES, SLOTS, 0.0, str(record))
    words = [sys.executable, "-m", "benchmarks.nodes.scripted", json.dumps(asdict(script))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as scripted:
        samples = [*watched(place, command)]
        cost = command.cost()
        assert scripted.stdout is not None
        told = Told(**json.loads(scripted.stdout.read()))
    run = place.last_run(rollouts * CALLS)
    return Long(cost, samples, told, run.processes["pool"].cpu_s)


def _token(place: Workplace, before: set[Path]) -> str:
    """Waits until a new session listens for node workers, and returns their token."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        for run in {*place.runs} - before:
            if (file := run / "nodes.token").is_file() and (token := file.read_text().strip()):
                return token
        time.sleep(0.05)
    raise BenchmarkError(f"the session did not listen for node workers within {START:.0f} s")
