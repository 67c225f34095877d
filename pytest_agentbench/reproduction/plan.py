"""What is measured: a cell for each method and concurrency, each a session of its own; and what a directory of them is about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import json_object
from pytest_agentbench.metrics.performance import Offsets
from pytest_agentbench.records import Json

FILE, SCHEMA = "plan.json", "agentbench-reproduction/1"


@dataclass(frozen=True)
class Cell:
    """A method at a concurrency."""

    method: str
    backend: str  # a name or a YAML, as --agentbench-backend has it
    concurrency: int  # rollouts in flight

    @property
    def name(self) -> str:
        """The name of the cell on the terminal, which its run gets too."""
        return f"{self.method}-c{self.concurrency}"

    def folder(self, run: str) -> str:
        """The name of the folder of its files, in which the original's plot script looks for method and concurrency."""
        return f"hle_paper_{self.method}_c{self.concurrency}_rep1_{run}"


@dataclass(frozen=True)
class ReproductionPlan:
    """What all cells of a directory have in common."""

    suite: str  # folder, as pytest takes it
    variant: str  # of the suite; empty: its own agent
    duration_s: float  # after which no rollout begins; those that run then end
    window: Offsets  # seconds after the first call
    sample_s: float  # between two looks at the metrics
    options: tuple[str, ...]  # of pytest
    backends: Mapping[str, str]  # method -> backend; the first is the baseline

    @property
    def baseline(self) -> str:
        return next(iter(self.backends))

    def cells(self, concurrencies: Iterable[int]) -> list[Cell]:
        """All methods at one concurrency before the next one, so that what drifts meets all of them alike."""
        return [Cell(method, backend, concurrency) for concurrency in concurrencies for method, backend in self.backends.items()]

    def words(self, cell: Cell) -> list[str]:
        """What pytest is called with for a cell."""
        start, end = self.window
        return [
            self.suite,
            *([f"--agentbench-variants={self.variant}"] if self.variant else []),
            f"--agentbench-backend={cell.backend}",
            f"--agentbench-concurrency={cell.concurrency}",
            f"--agentbench-sandboxes={cell.concurrency}",  # with fewer, some of those in flight would wait
            f"--agentbench-time-limit={self.duration_s:g}s",
            f"--agentbench-window={start:g}s:{'' if end is None else f'{end:g}s'}",
            f"--agentbench-sample-interval={self.sample_s:g}s",
            *self.options,
        ]


def settle(plan: ReproductionPlan, output: Path) -> ReproductionPlan:
    """The plan of a directory, with the methods that it had before; it is written down. Raises ConfigError where it was another one."""
    file = output / FILE
    if not file.exists():
        if output.exists() and any(output.iterdir()):
            raise ConfigError(f"{output} has files and no {FILE}; name a new directory with --output DIR")
        output.mkdir(parents=True, exist_ok=True)
        earlier: Json = {}
    else:
        earlier = json_object(file.read_bytes()) or {}
        if earlier.get("schema") != SCHEMA:
            raise ConfigError(f"{file} is not of schema {SCHEMA}; name a new directory with --output DIR")
    own = codec.plain(plan)
    if changed := [name for name in own if name in earlier and name != "backends" and own[name] != earlier[name]]:
        name = changed[0]
        raise ConfigError(
            f"{file}: `{name}` was {json.dumps(earlier[name])} and is now {json.dumps(own[name])}, and cells of both cannot be compared; "
            "name another directory with --output DIR"
        )
    known: dict[str, str] = {**earlier.get("backends", {})}
    for method, backend in plan.backends.items():
        if known.setdefault(method, backend) != backend:
            raise ConfigError(f"{file}: the method {method!r} was {known[method]} and is now {backend}; give one of them another name")
    whole = replace(plan, backends=known)
    file.write_text(json.dumps({"schema": SCHEMA, **codec.plain(whole)}, indent=2) + "\n", encoding="utf-8")
    return whole


def methods(text: str) -> dict[str, str]:
    """`NAME=BACKEND,BACKEND`: name of a method -> backend; a backend alone is called as its file is. The first is the baseline."""
    methods: dict[str, str] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, backend = word.partition("=")
        name = name if equals else Path(word).stem
        if not name or (equals and not backend) or name in methods or not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError("NAME=BACKEND or a backend, separated by commas, each name once: baseline=vllm-default-router,thunderagent")
        methods[name] = backend if equals else word
    if not methods:
        raise ValueError("one method at least, such as thunderagent")
    return methods


def hours(cells: Sequence[Cell], plan: ReproductionPlan) -> str:
    """How long cells take at the least: `30 h 0 min`."""
    minutes = len(cells) * plan.duration_s / 60
    return f"{round(minutes) // 60} h {round(minutes) % 60} min" if minutes >= 60 else f"{minutes:.3g} min"
