"""Replays the trace of a run with other stack settings, by NVIDIA Dynamo's simulator. `Question` is the input of `agentbench what-if`.

A trace contains the times at which rollouts began in the run. With these times, more and more rollouts would be in flight on a slower
stack, and its setting would look far worse than it is. So the trace is changed to a closed loop: rollouts begin when others end.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.backends.stack.templates import TEMPLATE
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.exports.mooncake import BLOCK
from pytest_agentbench.exports.sessions import sessions
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.lib.process import end_group, end_text, foreign_environment
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.metrics.columns import Origin
from pytest_agentbench.records import Json
from pytest_agentbench.runs.run_file import BackendUse
from pytest_agentbench.simulation.figures import OBJECTIVES

#: Router on the command line -> router of the simulator.
ROUTERS: Mapping[str, str] = {"kv": "kv_router", "round_robin": "round_robin"}

MEASURED, MOCKER = "measured", "mocker"  # speed of simulated workers: measured in the run, or from the simulator's own model

#: `workers`, `kv-blocks`, `block-size`, `router` -> value. Unknown ones are missing.
Facts = Mapping[str, int | str]


@dataclass(frozen=True)
class Question:
    """The settings to simulate for a run, and how to simulate them."""

    workers: Sequence[int] = ()  # empty: as in the run; likewise for KV blocks and routers
    kv_blocks: Sequence[int] = ()
    routers: Sequence[str] = ()
    original: Facts = field(default_factory=dict)  # parts of the run's own setting that its backend does not report, or reports wrongly
    timing: str = MEASURED  # MEASURED, MOCKER, or the path of a profile
    objectives: Mapping[str, float] | None = None  # objective -> milliseconds; None: the objectives of the run
    limit_s: float = 300.0  # time limit of one replay, seconds


BLOCK_SIZE = 16  # tokens in a block if unknown: the default of vLLM
MOST = 64  # limit on the settings of one table

#: Option of a service's command -> part of the setting that it sets.
FLAGS: Mapping[str, str] = {
    "num-gpu-blocks-override": "kv-blocks",
    "block-size": "block-size",
    "router-mode": "router",
    "policy": "router",  # of the shipped dynamo_frontend.py, with session affinity as a suffix, which the simulator does not have
}
AFFINITY = ("_hard", "_soft")
_FLAG = re.compile(r"--([\w-]+)(?:=(.*))?")


@dataclass(frozen=True)
class Setting:
    """A setting of a stack: the number and the KV caches of aggregated workers, and the router in front of them."""

    workers: int  # number of workers
    kv_blocks: int  # blocks in each worker's KV cache
    block_size: int  # tokens in a block
    router: str  # `kv` or `round_robin`; the latter for one worker, which needs no choice

    @classmethod
    def of(cls, facts: Facts) -> Setting | None:
        """Returns the setting with these parts (`facts`: name, such as `workers`, -> value), or None if a needed part is missing.

        A missing block size is BLOCK_SIZE. One worker needs no router.
        """
        if missing(facts):
            return None
        workers, blocks, size = (int(facts.get(name, BLOCK_SIZE)) for name in ("workers", "kv-blocks", "block-size"))
        return cls(workers, blocks, size, str(facts["router"]) if workers > 1 else "round_robin")

    @property
    def text(self) -> str:
        router = f", {self.router}" if self.workers > 1 else ""
        return f"{self.workers} worker{'s' * (self.workers > 1)}, {self.kv_blocks} blocks{router}"

    @property
    def cache_tokens(self) -> int:
        """The tokens that fit into a worker's KV cache."""
        return self.kv_blocks * self.block_size


def missing(facts: Facts) -> list[str]:
    """Returns the names of the parts that `facts` lack for a complete setting, such as `workers`."""
    needed = ["workers", "kv-blocks", *(["router"] if facts.get("workers") != 1 else [])]
    return [name for name in needed if name not in facts]


def facts_of(backend: BackendUse) -> Facts:
    """Returns the known parts of the stack setting with which a run was measured: name, such as `workers` or `kv-blocks`, -> value.

    For the built-in engine all needed parts are known. For a stack whose workers (`ready.workers`) are all aggregated, it is the parts that
    its YAML contains, and for any other backend none.
    """
    if backend.kind == "embedded":
        return {"workers": 1, "kv-blocks": backend.more["kv_blocks"], "block-size": backend.more["block_size"]}
    workers = backend.more.get("ready", {}).get("workers", {})
    if backend.kind != "stack" or set(workers) != {"aggregated"}:
        return {}
    return {"workers": workers["aggregated"], **dict(_flags(backend.more))}


def _flags(stack: Json) -> Iterator[tuple[str, int | str]]:
    """Yields name and value of each part of the setting that the command of one of the stack's services contains."""
    for service in stack["services"].values():
        words = [_filled(word, stack.get("settings", {})) for word in service.get("run", ())]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if (flag := _FLAG.fullmatch(word)) and (name := FLAGS.get(flag[1])):
                value = (flag[2] if flag[2] is not None else following).replace("-", "_")
                if name == "router" and (router := _without_affinity(value)) in ROUTERS:
                    yield name, router
                elif name != "router" and value.isdecimal():
                    yield name, int(value)


def _without_affinity(policy: str) -> str:
    return next((policy.removesuffix(suffix) for suffix in AFFINITY if policy.endswith(suffix)), policy)


def _filled(text: str, values: Json) -> str:
    """Returns a word of a command with the settings of the YAML filled in. Other templates remain."""
    return TEMPLATE.sub(lambda template: str(values.get(template[1], template[0])), text)


def grid(workers: Sequence[int], kv_blocks: Sequence[int], routers: Sequence[str], facts: Facts) -> list[Setting]:
    """Returns the settings to simulate: all combinations of the given values. An empty list means the value of the run.

    Raises ConfigError if a part of the setting is unknown, or if there are too many combinations.
    """
    axes = {"workers": workers, "kv-blocks": kv_blocks, "router": routers}
    chosen: dict[str, Sequence[Any]] = {name: values or [facts[name]] for name, values in axes.items() if values or name in facts}
    choices = [{**facts, **dict(zip(chosen, values, strict=True))} for values in itertools.product(*chosen.values())]
    if lacking := {name: None for choice in choices for name in missing(choice)}:
        options = " and ".join(f"--{name}" for name in lacking)
        raise ConfigError(
            f"the run does not record its {' and '.join(lacking)}: give values to simulate with {options}, "
            "or those of the run with --original"
        )
    settings = dict.fromkeys(filter(None, map(Setting.of, choices)))
    if len(settings) > MOST:
        raise ConfigError(f"these are {len(settings)} settings, and each needs a replay; choose at most {MOST} at a time")
    return [*settings]


@dataclass(frozen=True)
class AttemptSpan:
    """The times of the calls of one attempt at a rollout, in nanoseconds since 1970."""

    starts: Mapping[str, int]  # call id -> time when it was sent
    last: str  # id of the call that ended last
    end: int  # time when it ended

    @property
    def start(self) -> int:
        return min(self.starts.values())


def close_loop(trace: Path, origin: Origin) -> None:
    """Changes a trace file to a closed loop: a rollout begins after its predecessor (see `predecessors`), not at a fixed time.

    `origin` is the run of which this is the trace.
    """
    waits = dict(_waits([*_spans(origin)]))
    rows = map(json.loads, trace.read_text(encoding="utf-8").splitlines())
    write_whole(trace, "".join(f"{json.dumps(_waiting(row, waits))}\n" for row in rows))


def _spans(origin: Origin) -> Iterator[AttemptSpan]:
    for session in sessions(origin):
        if session.calls:
            last = max(session.calls, key=lambda call: call.end)
            yield AttemptSpan({call.id: call.start for call in session.calls}, last.id, last.end)


def _waits(sessions: Sequence[AttemptSpan]) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yields (id of a call, (id of the call that it waits for, milliseconds in between))."""
    for session, before in predecessors(sessions):
        yield from ((call, (before.last, (start - before.end) / 1e6)) for call, start in session.starts.items())


def predecessors(sessions: Sequence[AttemptSpan]) -> Iterator[tuple[AttemptSpan, AttemptSpan]]:
    """Yields pairs of an attempt and its predecessor: the attempt that ended last before it began and has no successor yet."""
    free = sorted(sessions, key=lambda session: session.end, reverse=True)
    finished: list[AttemptSpan] = []
    for session in sorted(sessions, key=lambda session: session.start):
        while free and free[-1].end <= session.start:
            finished.append(free.pop())
        if finished:
            yield session, finished.pop()


def _waiting(row: Json, waits: Mapping[str, tuple[str, float]]) -> Json:
    """Returns a line of the trace, which is a call. If it begins at a fixed time and is in `waits`, it waits for another call instead."""
    if "timestamp" not in row or row["request_id"] not in waits:
        return row
    call, delay = waits[row["request_id"]]
    return {**{name: value for name, value in row.items() if name != "timestamp"}, "wait_for": [call], "delay": delay, "tool_wait_ms": 0.0}


ENVIRONMENT = "dynamo-simulator"
LINES = 12  # number of lines at the end of the simulator's log that an error message contains


@dataclass(frozen=True)
class Simulator:
    """Replays a trace with one setting after another. Its files are in the folder of the trace."""

    trace: Path
    profile: Path | None  # profile with the speed of a worker; None: the simulator's own model
    objectives: Mapping[str, float]  # objective -> milliseconds
    limit_s: float  # time limit of one replay, seconds

    def report(self, setting: Setting) -> Json:
        """Simulates a setting and returns the report. Raises MissingError without its environment, BackendError if it fails."""
        folder = self.trace.parent
        log, report = folder / "replay.log", folder / "report.json"
        report.unlink(missing_ok=True)
        command = [str(resolve_python(ENVIRONMENT, folder)), *self.arguments(setting, report)]
        failure = _run(command, log, self.limit_s)
        if not failure and report.is_file():
            whole: Json = read_json_file(report)
            return whole
        words = indented(tail(log, LINES))
        raise BackendError(
            f"the simulator {failure or 'wrote no report'} on {setting.text}; the end of its log:\n{words}\n"
            f"the command was: {shlex.join(command)}"
        )

    def arguments(self, setting: Setting, report: Path) -> list[str]:
        """Returns the arguments of the Python interpreter that runs the simulator, which writes its report to the file `report`."""
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
    """Runs a program and then ends all processes that it started. Returns what went wrong, or an empty string.

    HOME and temporary files are in the log's folder.
    """
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
