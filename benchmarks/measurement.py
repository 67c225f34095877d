"""What all benchmarks share: a command and what it cost, and a figure beside its target."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Settings of the caller's environment that would change what is measured: a test run around this one, and a Python that
#: compiles our modules anew in every process because it may not keep what it compiled.
LEFT_OUT = ("COV_", "COVERAGE_", "PYTEST_", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")


class BenchmarkError(Exception):
    """A benchmark could not measure what it is for."""


class BenchmarkSkipped(Exception):
    """A benchmark needs something that this machine does not have."""


@dataclass(frozen=True)
class Options:
    """What the command line asks of the benchmarks."""

    repeat: int | None = None  # runs of each arm; None: as many as the benchmark wants
    quick: bool = False
    streams: tuple[int, ...] = ()  # in flight; empty: all that the benchmark tries
    table: Path | None = None  # a file for the table


@dataclass(frozen=True)
class Figure:
    """One number that the issue sets a target for."""

    name: str
    value: float
    unit: str
    limit: float
    ratio: str = ""  # what it is of something else measured in the same run

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    @property
    def columns(self) -> tuple[str, str, str, str]:
        measured = f"{self.value:.3g} {self.unit}" + (f" ({self.ratio})" if self.ratio else "")
        return self.name, measured, f"<= {self.limit:.3g} {self.unit}", "holds" if self.holds else "MISSES"


@dataclass(frozen=True)
class Result:
    """What a benchmark found."""

    figures: list[Figure]
    notes: list[str]
    table: str = ""  # Markdown: everything that was measured
    gross: tuple[str, ...] = ()  # sentences on what is so far off that something must be broken

    def to_dict(self) -> dict[str, Any]:
        return {"figures": [{**asdict(figure), "holds": figure.holds} for figure in self.figures], "notes": self.notes}


@dataclass(frozen=True)
class Cost:
    """What a command took, the processes it waited for included."""

    wall_s: float
    cpu_s: float  # user and system
    peak_mb: float  # largest resident size of any one process, 10^6 bytes
    output: str


class Command:
    """A running command whose output goes to a file, so that no pipe can fill up."""

    def __init__(self, words: Sequence[str], cwd: Path, **environment: str) -> None:
        self.words = words
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `cost`
        self._started = time.monotonic()
        self.process = subprocess.Popen(words, cwd=cwd, env=clean_environment(environment), stdout=self._output, stderr=subprocess.STDOUT)

    def cost(self) -> Cost:
        """Waits for the command; raises BenchmarkError with the end of its output when it fails."""
        _, status, usage = os.wait4(self.process.pid, 0)
        wall = time.monotonic() - self._started
        self.process.returncode = os.waitstatus_to_exitcode(status)
        with self._output:
            self._output.seek(0)
            output = self._output.read().decode(errors="replace")
        if self.process.returncode != 0:
            raise BenchmarkError(f"`{' '.join(self.words)}` ended with {self.process.returncode}:\n{clipped(output)}")
        return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, output)


class Surroundings:
    """What else goes on on this machine: CPU seconds swing by half when others keep it busy."""

    def __init__(self) -> None:
        self._started, self._busy, self._ours = time.monotonic(), machine_cpu(), our_cpu()

    def __str__(self) -> str:
        passed = time.monotonic() - self._started
        foreign = (machine_cpu() - self._busy - our_cpu() + self._ours) / passed
        return f"{passed:.0f} s; others used {max(0.0, foreign):.1f} of {os.cpu_count()} cores meanwhile"


def machine_cpu() -> float:
    """CPU seconds that this machine has spent on anything since it booted."""
    user, nice, system, _, _, irq, softirq, *_ = (int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def our_cpu() -> float:
    """CPU seconds of this process and of all that it waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def clipped(output: str, most: int = 2000) -> str:
    """The two ends of a long output."""
    return output if len(output) <= 2 * most else f"{output[:most]}\n[...]\n{output[-most:]}"


def clean_environment(extra: dict[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}, **extra}


def pytest_command(cwd: Path, *arguments: str, **environment: str) -> Command:
    """A pytest of this Python, running in a directory."""
    return Command([sys.executable, "-m", "pytest", *arguments], cwd, **environment)


def run_pytest(cwd: Path, *arguments: str, **environment: str) -> Cost:
    return pytest_command(cwd, *arguments, **environment).cost()


def seconds(values: Sequence[float]) -> str:
    """The single runs behind a median."""
    return ", ".join(f"{value:.2f}" for value in values) + " s"


def each_of(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())
