"""The CPU use of the processes of a session, sampled once a second."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.metrics.stopwatch import SAMPLE_NS, CpuSample


class CostSource(Protocol):
    """The interface of a process that reports its CPU time, for example a `Child`."""

    def cost(self) -> Mapping[str, float] | None:
        """Returns a mapping with the CPU seconds of the process so far (`cpu_s`), or None if they are unknown."""


class CpuWatch:
    """Samples the CPU time of processes in a thread, once a second. A sample takes about 0.2 ms for each process."""

    def __init__(self, every_ns: int = SAMPLE_NS) -> None:
        self.samples: defaultdict[str, list[CpuSample]] = defaultdict(list)  # process -> its samples
        self._every_s = every_ns / 1e9
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: dict[str, tuple[int, float]] = {}  # process -> (time of its last sample in ns, CPU seconds until then)

    def start(self, processes: Mapping[str, CostSource]) -> None:
        self._thread = daemon(self._watch, processes, name="cpu")

    def stop(self) -> None:
        """Takes a last sample and ends the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, processes: Mapping[str, CostSource]) -> None:
        self._sample(processes)
        while not self._stopping.wait(self._every_s):
            self._sample(processes)
        self._sample(processes)

    def _sample(self, processes: Mapping[str, CostSource]) -> None:
        for name, process in processes.items():
            if (cost := process.cost()) is None:
                continue
            now, cpu_s = time.monotonic_ns(), cost["cpu_s"]
            if name in self._last and now > self._last[name][0] and cpu_s >= self._last[name][1]:  # Otherwise the process was restarted.
                before, cpu_before = self._last[name]
                self.samples[name].append((before, now, (cpu_s - cpu_before) * 1e9 / (now - before)))
            self._last[name] = now, cpu_s
