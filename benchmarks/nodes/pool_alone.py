"""How many leases a pool can give: a pool process with scripted node workers, and a controller that only acknowledges records."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.measurement import BenchmarkError
from benchmarks.nodes.scripted import Script, Told
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.records import Endpoint, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import PoolProcess, TapProcesses
from pytest_agentbench.rollouts.protocol import NodeTerms, PoolConfig, PoolSettings, Scheduling
from pytest_agentbench.rollouts.questions_of_tests import PlanSelected
from pytest_agentbench.runs import journal
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from pytest_agentbench.tap.protocol import Budgets

LONGEST = 300.0  # seconds that a step may take


@dataclass(frozen=True)
class Step:
    """One pool with a number of slots."""

    nodes: int
    slots: int  # of all node workers together
    leases: int
    refilled: int  # leases for slots that an attempt has left
    per_s: float  # leases per second
    p50_ms: float  # how long a slot stayed free, from the end of an attempt to the next lease
    p99_ms: float
    pool_cpu_ms: float  # CPU of the pool for each lease
    script_cpu_ms: float  # CPU of the scripted node workers for each lease


def run(record: Path, leases: int, nodes: int, slots: int, takes_s: float = 0.0) -> Step:
    """Has a new pool give `leases` leases to scripted node workers, which end them after `takes_s` seconds on average with this record."""
    with tempfile.TemporaryDirectory(prefix="agentbench-benchmark-") as folder:
        pool = _Pool(Path(folder), leases, slots)
        with pool.running() as process:
            script = Script(pool.node_port, pool.token, nodes, slots // nodes, takes_s, str(record))
            command = [sys.executable, "-m", "benchmarks.nodes.scripted", json.dumps(asdict(script))]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scripted:
                if not pool.all_recorded.wait(LONGEST):
                    scripted.kill()
                    raise BenchmarkError(f"a pool recorded {pool.recorded} of {leases} rollouts in {LONGEST:.0f} s")
                usage = psutil.Process(process.child.process.pid).cpu_times()
                process.send(protocol.EndSession())
                assert scripted.stdout is not None
                told = Told(**json.loads(scripted.stdout.read()))
    return _step(told, nodes, slots, usage.user + usage.system - pool.cpu_at_start)


def _step(told: Told, nodes: int, slots: int, cpu: float) -> Step:
    waits: Sequence[float] = told.waits_ms[len(told.waits_ms) // 20 :]  # The first ones belong to the start.
    p50, p99 = np.percentile(waits, (50, 99))
    per_s = len(told.waits_ms) / (told.last - told.first)
    return Step(
        nodes,
        slots,
        told.leases,
        len(told.waits_ms),
        per_s,
        float(p50),
        float(p99),
        cpu / told.leases * 1e3,
        told.cpu_s / told.leases * 1e3,
    )


class _Pool:
    """A pool process, its sockets, its tap, and the controller's side of its messages."""

    def __init__(self, folder: Path, leases: int, slots: int) -> None:
        self.token, self.cpu_at_start = secrets.token_urlsafe(16), 0.0
        self.recorded, self.all_recorded = 0, threading.Event()
        self._folder, self._leases = folder, leases
        scenarios = tuple(Scenario(f"bench-{number:05}", ({"role": "user", "content": "A lamp?"},)) for number in range(leases))
        dataset = DatasetInfo("bench", "f", "data.json", "0" * 64, "hand", leases)
        suite = Suite("bench", folder / "suite", scenarios, dataset=dataset)
        suite.folder.mkdir()
        self._keys = tuple(RolloutKey("bench", each.id) for each in scenarios)
        self._listener, self._node_listener = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        self.node_port: int = self._node_listener.getsockname()[1]
        self._settings = PoolSettings(
            session=1,
            rerun=(),
            run="r",
            backend="b",
            suites={"bench": suite.for_pool()},
            sys_path=tuple(sys.path),
            log_level="info",
            scheduling=Scheduling(concurrency=slots, retries=0, keep_order=True, durations={}),
            blocks=None,
            sandboxes=1,
            time_limit=None,
            budget=None,
            sizes=Sizes(),
            keep="none",
        )

    @contextmanager
    def running(self) -> Iterator[PoolProcess]:
        """Starts tap and pool, and plans all rollouts."""
        directory = self._folder / "run"
        directory.mkdir()
        (directory / journal.FILE).touch()
        terms = NodeTerms(self.token, self._node_listener.fileno(), None, 60.0, Budgets(), 1, None)
        taps = TapProcesses(1, Budgets(), self._folder)
        taps.ready()
        self._process = PoolProcess(
            lambda pipe: PoolConfig(self.token, self._listener.fileno(), pipe, self._settings, 1, directory, 0, terms),
            self._listener,
            self._folder / "pool.log",
            secrets.token_hex(8),
            (self._node_listener.fileno(),),
        )
        try:
            self._process.begin(self._on_message, lambda _, __: None)
            with wire.connect(self._listener.getsockname()[1], self.token, "test") as test:
                wire.send(test, PlanSelected(self._keys, {"bench": len(self._keys)}))
                wire.receive(test)
            self._process.send(protocol.Start(Endpoint("http://127.0.0.1:9/v1", "m"), (), taps.facts, 0.0, {}))
            usage = psutil.Process(self._process.child.process.pid).cpu_times()
            self.cpu_at_start = usage.user + usage.system
            yield self._process
        finally:
            self._process.close()
            for child in (self._process.child, *taps.stop()):
                child.stop()
            self._listener.close()
            self._node_listener.close()

    def _on_message(self, process: PoolProcess, message: protocol.ToController, body: bytes) -> None:
        match message:
            case protocol.PlanMade():
                process.send(protocol.PlanTaken(()))
            case protocol.RolloutFinished():
                process.send(protocol.RecordLine(), body.partition(b"\n")[0])
                self.recorded += 1
                if self.recorded == self._leases:
                    self.all_recorded.set()
            case protocol.CheckProcesses():
                process.send(protocol.ProcessesChecked())
            case protocol.ShowUser(sentence) if " has joined" not in sentence:
                sys.stderr.write(f"{sentence}\n")
