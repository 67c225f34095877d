"""One replay of a trace by NVIDIA Dynamo's simulator, a process in the environment `dynamo`."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.machine.environments import resolve_python
from pytest_agentbench.errors import BackendError
from pytest_agentbench.exports.mooncake import BLOCK
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.lib.process import end_group, end_text, foreign_environment
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.records import Json
from pytest_agentbench.simulation.figures import OBJECTIVES
from pytest_agentbench.simulation.question import ROUTERS
from pytest_agentbench.simulation.settings import Setting

ENVIRONMENT = "dynamo"
LINES = 12  # of the simulator's last words that an error carries


@dataclass(frozen=True)
class Simulator:
    """Replays a trace on one setting after the other, in a folder of its own."""

    trace: Path
    profile: Path | None  # how fast a worker is; None: as the simulator's own model has it
    objectives: Mapping[str, float]  # milliseconds
    limit_s: float  # that one replay may take

    def report(self, setting: Setting) -> Json:
        """What the simulator reports of a setting; raises MissingError without its environment, BackendError when it fails."""
        folder = self.trace.parent
        log, report = folder / "replay.log", folder / "report.json"
        report.unlink(missing_ok=True)
        command = [str(resolve_python(ENVIRONMENT, folder)), *self.arguments(setting, report)]
        why = _run(command, log, self.limit_s)
        if not why and report.is_file():
            whole: Json = read_json_file(report)
            return whole
        words = indented(tail(log, LINES))
        raise BackendError(
            f"the simulator {why or 'wrote no report'} on {setting.text}; its last words:\n{words}\nthe command was: {shlex.join(command)}"
        )

    def arguments(self, setting: Setting, report: Path) -> list[str]:
        """Those of the interpreter."""
        engine: dict[str, Any] = {"block_size": setting.block_size, "num_gpu_blocks": setting.kv_blocks}
        if self.profile is not None:
            engine["planner_profile_data"] = str(self.profile)
        return [
            *("-m", "dynamo.replay", str(self.trace), "--trace-format", "agentic_mooncake", "--trace-block-size", str(BLOCK)),
            *("--num-workers", str(setting.workers), "--router-mode", ROUTERS[setting.router]),
            *("--extra-engine-args", json.dumps(engine), "--report-json", str(report)),
            *(word for name, limit in self.objectives.items() for word in (OBJECTIVES[name], str(limit))),
        ]


def _run(command: list[str], log: Path, limit_s: float) -> str:
    """Runs a program to its end, and ends what it leaves; returns what went wrong. HOME and temporary files are the log's folder."""
    here = str(log.parent)
    environment = {**foreign_environment(), "HOME": here, "TMPDIR": here, "DYN_LOG": "error", "DYN_SDK_DISABLE_ANSI_LOGGING": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=here, env=environment, start_new_session=True
        )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit_s:g} s"
    finally:
        end_group(process)
    return end_text(code) if code else ""
