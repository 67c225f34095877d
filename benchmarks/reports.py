"""reports: CPU that writing report.md and run.json adds to a session of the banking suite"""

from __future__ import annotations

import statistics
import sys

from benchmarks.measurement import Command, Figure, Options, Result, run_pytest, seconds
from benchmarks.workplace import Workplace, workplace

PAIRS = RUNS = 7
LIMIT_S = 0.3

#: Says what pytest's own process took: reports are written there, and the others only make noise.
METER = """
import atexit, pathlib, time
atexit.register(lambda: pathlib.Path("cpu").write_text(str(time.process_time())))
"""
SILENT = """
from pytest_agentbench.session import finish

finish.Finish._write_files = lambda *arguments: None
"""

#: The same in a process that does nothing else, where no noise of a session hides it.
ALONE = """
import sys, time
from pathlib import Path
from pytest_agentbench.runs.run_file import read_run, write_run
directory = Path(sys.argv[1])
run, started = read_run(directory), time.process_time()
from pytest_agentbench.reports import write_reports
write_reports(run, directory)
write_run(run, directory)
print(time.process_time() - started)
"""
FAST = ("--agentbench-set=backend.ttft_ms=0", "--agentbench-set=backend.itl_ms=0")


def measure(options: Options) -> Result:
    with workplace() as place:
        place.write("meter.py", METER)
        place.write("silent.py", SILENT)
        Command([sys.executable, "-m", "pytest_agentbench.cli", "init", "banking"], place.root).cost()
        session(place)  # compiles what is compiled once
        (first,) = place.runs
        pairs = [(session(place), session(place, "-p", "silent")) for _ in range(options.repeat or PAIRS)]
        alone = [float(Command([sys.executable, "-c", ALONE, str(first)], place.root).cost().output) for _ in range(RUNS)]
        size = sum((first / name).stat().st_size for name in ("report.md", "run.json"))
    reporting, silent = zip(*pairs, strict=True)
    added = statistics.median(on - off for on, off in pairs)
    return Result(
        [
            Figure("reports.cpu", added, "s", LIMIT_S, f"{statistics.median(reporting) / statistics.median(silent):.2f}x without"),
            Figure("reports.alone", statistics.median(alone), "s", LIMIT_S),
        ],
        [
            f"reports.cpu: median of the pairs' differences, of pytest's own process; 100 rollouts, {size / 1e3:.0f} kB written",
            f"with reports {seconds(reporting)}; without {seconds(silent)}",
            "reports.alone: the same run written again by a process that does nothing else, with what it imports for it",
        ],
    )


def session(place: Workplace, *words: str) -> float:
    """Runs a session of the banking suite. Returns the CPU seconds of the pytest process, without its children."""
    run_pytest(place.root, "-p", "meter", *words, *FAST, "--agentbench-ci=off", "scenarios/banking", PYTHONPATH=str(place.root))
    return float((place.root / "cpu").read_text())
