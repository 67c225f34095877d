"""Classes and functions that all benchmarks use: commands with their cost, and measured figures with their targets."""

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
    """A benchmark failed, so it has no result."""


class BenchmarkSkipped(Exception):
    """A benchmark needs something that this machine does not have."""


@dataclass(frozen=True)
class Options:
    """The command-line options that benchmarks get."""

    repeat: int | None = None  # runs of each arm; None: as many as the benchmark wants
    quick: bool = False
    streams: tuple[int, ...] = ()  # in flight; empty: all that the benchmark tries
    table: Path | None = None  # a file for the table


@dataclass(frozen=True)
class Figure:
    """One measured number that has a target, which is an upper limit."""

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
    """The result of a benchmark: figures with targets, notes, and possibly a table of all measurements."""

    figures: list[Figure]
    notes: list[str]
    table: str = ""  # Markdown: everything that was measured
    gross: tuple[str, ...] = ()  # sentences on what is so far off that something must be broken

    def to_dict(self) -> dict[str, Any]:
        return {"figures": [{**asdict(figure), "holds": figure.holds} for figure in self.figures], "notes": self.notes}


@dataclass(frozen=True)
class Cost:
    """Time and memory of a command, including the child processes that it waited for."""

    wall_s: float
    cpu_s: float  # user and system
    peak_mb: float  # largest resident size of any one process, 10^6 bytes
    output: str


class Command:
    """A running command. Its output goes to a file, so that it never blocks on a full pipe."""

    def __init__(self, words: Sequence[str], cwd: Path, **environment: str) -> None:
        self.words = words
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `cost`
        self._started = time.monotonic()
        self.process = subprocess.Popen(words, cwd=cwd, env=clean_environment(environment), stdout=self._output, stderr=subprocess.STDOUT)

    def cost(self) -> Cost:
        """Waits for the command and returns its cost. Raises BenchmarkError with its output if it fails."""
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
    """Measures the CPU use of other processes while a benchmark runs. If they are busy, CPU times may vary by half."""

    def __init__(self) -> None:
        self._started, self._busy, self._ours = time.monotonic(), machine_cpu(), our_cpu()

    def __str__(self) -> str:
        passed = time.monotonic() - self._started
        foreign = (machine_cpu() - self._busy - our_cpu() + self._ours) / passed
        return f"{passed:.0f} s; others used {max(0.0, foreign):.1f} of {os.cpu_count()} cores meanwhile"


def machine_cpu() -> float:
    """Returns the CPU seconds of all processes of this machine since it booted."""
    user, nice, system, _, _, irq, softirq, *_ = (int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def our_cpu() -> float:
    """Returns the CPU seconds of this process and of the children that it waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def clipped(output: str, most: int = 2000) -> str:
    """Returns an output without its middle if it is long."""
    return output if len(output) <= 2 * most else f"{output[:most]}\n[...]\n{output[-most:]}"


def clean_environment(extra: dict[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}, **extra}


def pytest_command(cwd: Path, *arguments: str, **environment: str) -> Command:
    """Starts pytest with this interpreter in a directory. Returns the running command."""
    return Command([sys.executable, "-m", "pytest", *arguments], cwd, **environment)


def run_pytest(cwd: Path, *arguments: str, **environment: str) -> Cost:
    return pytest_command(cwd, *arguments, **environment).cost()


def seconds(values: Sequence[float]) -> str:
    """Formats times in seconds, such as the single runs of a median."""
    return ", ".join(f"{value:.2f}" for value in values) + " s"


def each_of(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())
