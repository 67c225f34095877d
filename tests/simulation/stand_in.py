"""A replacement for the simulator's interpreter. It answers `-m dynamo.replay` with a report of the real simulator.

It simulates nothing: the time to the first token is 100,000 ms divided by the blocks of all workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of
from pytest_agentbench.lib.process import lives
from pytest_agentbench.simulation.replay import ENVIRONMENT

REPLAY = f"""
import json, sys
value = dict(zip(sys.argv, sys.argv[1:]))
engine = json.loads(value["--extra-engine-args"])
report = json.load(open({str(Path(__file__).parent / "report.json")!r}))
report["completed_requests"] = sum(1 for _ in open(sys.argv[3]))
report["median_ttft_ms"] = 1e5 / engine["num_gpu_blocks"] / int(value["--num-workers"])
report["duration_ms"] = 1300.0
json.dump(report, open(value["--report-json"], "w"))
"""


#: Writes its process id and that of its child to a pipe, and continues to run.
STUCK = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
open({pids!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(1000)
"""


def all_end(pids: Sequence[int]) -> bool:
    """Returns whether there were such processes and all of them ended. Killed processes may need a moment."""
    deadline = time.monotonic() + 60
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(pids) and not any(map(lives, pids))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str = REPLAY) -> None:
    """Creates the environment of the simulator, whose interpreter runs these lines."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(folder / "envs"))
    home = home_of(ENVIRONMENT)
    (home / "bin").mkdir(parents=True)
    (home / "whole").touch()
    python = home / "bin" / "python"
    python.write_text(f"#!{sys.executable}\n{body}")
    python.chmod(0o755)
