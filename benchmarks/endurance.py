"""endurance: memory of pytest, pool and tap while 10,000 rollouts run, and the pool's CPU"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.measurement import BenchmarkError, Command, Figure, Options, Result, each_of, pytest_command, run_pytest
from benchmarks.one_process import IN_FLIGHT
from benchmarks.workplace import BARE, SUITE, Workplace, calls_of, processes, workplace

ROLLOUTS = 10_000
SETTLED = 1_000  # rollouts after which nothing may grow any more
EVERY = 0.5  # seconds between two looks
LIMIT_GROWTH = 1.10
LIMIT_CPU = 60
PAGE = os.sysconf("SC_PAGE_SIZE")

#: Two of the tests write down how large their own process is. pytest keeps every report, so a bare one grows as well.
LOOK = f"""
import pathlib, pytest

def look(number):
    if number in ({SETTLED}, {ROLLOUTS - 1}):
        pathlib.Path(f"statm-{{number}}").write_text(pathlib.Path("/proc/self/statm").read_text())
"""
SUITE_TEST = f"""{LOOK}
def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
    look(int(rollout.scenario.rpartition("-")[2]))
"""
BARE_TEST = f"""{LOOK}
@pytest.mark.parametrize("number", range({ROLLOUTS}))
def test_nothing(number):
    look(number)
"""


@dataclass(frozen=True)
class Sample:
    """One measurement of a running session: its progress and the memory of its processes."""

    rollouts: int  # in the journal
    resident: dict[str, float]  # process -> 10^6 bytes


def measure(options: Options) -> Result:
    del options  # one size
    turns = [number % 2 for number in range(ROLLOUTS)]  # one or two calls each
    with workplace() as place:
        place.suite(turns, SUITE_TEST)
        place.backend(tokens=20)
        command = pytest_command(place.root, IN_FLIGHT, SUITE)
        samples = [*watched(place, command)]
        cost = command.cost()
        ours = looks(place)
        cpu = processes(place.last_run(calls_of(turns)))
        place.write("bare/test_bare.py", BARE_TEST)
        run_pytest(place.root, *BARE)
        bare = looks(place)
    start, end = settled(samples)
    expected = bare[1] - bare[0]
    return Result(
        [
            *(growth(name, start.resident[name], end.resident[name]) for name in ("pool", "tap")),
            growth("pytest", *ours, expected),
            Figure("endurance.cpu", cpu["pool"], "s", LIMIT_CPU, f"{cpu['pool'] / ROLLOUTS * 1e3:.1f} ms each"),
        ],
        [
            f"endurance.pytest: less the {expected:.0f} MB that a bare pytest grows by, for it keeps every report",
            f"pool and tap were looked at after {start.rollouts} and after {end.rollouts} rollouts",
            f"{ROLLOUTS} rollouts with {calls_of(turns)} LLM calls took {cost.wall_s:.0f} s in all",
            f"CPU of {each_of(cpu)} s",
            f"the engine: {start.resident.get('engine', 0):.0f} -> {end.resident.get('engine', 0):.0f} MB",
        ],
    )


def growth(name: str, before: float, after: float, expected: float = 0) -> Figure:
    return Figure(f"endurance.{name}", (after - expected) / before, "x", LIMIT_GROWTH, f"{before:.0f} -> {after:.0f} MB")


def looks(place: Workplace) -> tuple[float, float]:
    """Returns the memory of the pytest process in its 1,000th test and in its last one, in 10^6 bytes."""
    first, last = (int((place.root / f"statm-{number}").read_text().split()[1]) * PAGE / 1e6 for number in (SETTLED, ROLLOUTS - 1))
    return first, last


def settled(samples: list[Sample]) -> tuple[Sample, Sample]:
    """Returns the first sample after SETTLED rollouts, and the last sample. Raises BenchmarkError if there are too few."""
    after = [sample for sample in samples if sample.rollouts >= SETTLED and {"pool", "tap"} <= sample.resident.keys()]
    if len(after) < 2 or after[-1].rollouts < ROLLOUTS * 0.9:
        raise BenchmarkError(f"samples were taken only at {[sample.rollouts for sample in samples]} rollouts, too few to compare")
    return after[0], after[-1]


def watched(place: Workplace, command: Command) -> Iterator[Sample]:
    """Yields a sample every EVERY seconds until the command ends. The caller still has to wait for the command."""
    journal = Lines(place)
    while os.waitid(os.P_PID, command.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        sizes = {name: resident(pid) for name, pid in children(command.process.pid).items()}
        yield Sample(journal.count(), {name: size for name, size in sizes.items() if size})
        time.sleep(EVERY)


class Lines:
    """Counts the lines in the journal of the newest run. Each call of `count` reads only the new lines."""

    def __init__(self, place: Workplace) -> None:
        self._place, self._read, self._lines = place, 0, 0

    def count(self) -> int:
        journals = [run / "rollouts.jsonl" for run in self._place.runs]
        if journals and journals[-1].is_file():
            with journals[-1].open("rb") as file:
                file.seek(self._read)
                while part := file.read(1 << 20):
                    self._read += len(part)
                    self._lines += part.count(b"\n")
        return self._lines


def children(parent: int) -> dict[str, int]:
    """Returns the process ids of the pool, the tap and the engine that a pytest process has started, by name."""
    pids: dict[str, int] = {}
    with suppress(psutil.Error):  # it ended while it was looked at
        for child in psutil.Process(parent).children():
            pids[child.cmdline()[-1].rpartition(".")[2]] = child.pid
    return pids


def resident(pid: int) -> float:
    """Returns the resident memory of a process in 10^6 bytes, or 0 if it has ended."""
    try:
        return float(psutil.Process(pid).memory_info().rss) / 1e6
    except psutil.Error:
        return 0.0
