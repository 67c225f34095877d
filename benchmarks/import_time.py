"""import: CPU time of importing the plugin, relative to `import pytest`, and heavy modules in a test process"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.measurement import Command, Figure, Options, Result, run_pytest
from benchmarks.workplace import SUITE, Workplace, workplace

RUNS = 11
LIMIT_MS = 100
HEAVY = ("httpx", "aiohttp", "pydantic", "pandas", "matplotlib", "docker", "openai")
NOT_IN_WORKERS = (*HEAVY, "yaml", "asyncio")

#: Only xdist and we are loaded: other plugins may import asyncio for themselves.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
WORKER = ("-n", "1", "-p", "xdist.plugin")

IMPORTS = """
import json, sys, time
started = time.process_time()
import pytest
between = time.process_time()
import pytest_agentbench.plugin
ended = time.process_time()
after_import = sorted(sys.modules)
from pytest_agentbench.session import controller, fixtures, hookspecs, progress, settings, worker
print(json.dumps({"pytest": between - started, "plugin": ended - between, "all": time.process_time() - between, "modules": after_import}))
"""
TELLING = """
import json, pathlib, sys
def test_modules({fixtures}):
    pathlib.Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
"""


def measure(options: Options) -> Result:
    del options  # one size
    with workplace() as place:
        runs = [json.loads(Command([sys.executable, "-c", IMPORTS], place.root).cost().output) for _ in range(RUNS)]
        bare, worker = bare_modules(place), worker_modules(place)
    plugin, everything, pytest = (statistics.median(run[name] for run in runs) * 1e3 for name in ("plugin", "all", "pytest"))
    added = sorted(worker - bare)
    return Result(
        [
            Figure("import.cpu", plugin, "ms", LIMIT_MS, f"{plugin / pytest:.2f}x import pytest"),
            Figure("import.idle", everything, "ms", LIMIT_MS, f"{everything / pytest:.2f}x import pytest"),
            _count("import.heavy", set(runs[0]["modules"]), HEAVY),
            _count("import.worker", worker, NOT_IN_WORKERS),
        ],
        [
            f"import.cpu: medians of {RUNS} fresh interpreters; import pytest takes {pytest:.0f} ms of CPU",
            "import.idle: and all that a pytest without a suite loads of us: options, hooks, fixtures, controller, worker",
            f"import.heavy: modules after the import among {', '.join(HEAVY)}",
            "import.worker: among these, yaml and asyncio, in a real xdist worker that read a rollout, with no other plugin loaded",
            f"beyond a bare worker it has {len(added)} modules: {', '.join(added)}",
        ],
    )


def bare_modules(place: Workplace) -> set[str]:
    place.write("bare/test_bare.py", TELLING.format(fixtures=""))
    run_pytest(place.root, *WORKER, "bare", **ALONE)
    return _told(place.root)


def worker_modules(place: Workplace) -> set[str]:
    place.suite([1], TELLING.format(fixtures="rollout, thresholds"))
    place.backend(tokens=20)
    run_pytest(place.root, *WORKER, "-p", "pytest_agentbench.plugin", SUITE, **ALONE)
    return _told(place.root)


def _told(root: Path) -> set[str]:
    told: list[Any] = json.loads((root / "modules.json").read_text())
    return set(told)


def _count(name: str, modules: set[str], unwanted: tuple[str, ...]) -> Figure:
    found = [each for each in unwanted if each in modules]
    return Figure(name, len(found), "modules", 0, ", ".join(found))
