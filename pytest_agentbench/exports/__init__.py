"""Imports the results of other tools as runs, and exports runs to the file formats of other tools.

Tools have a module here and a line in TOOLS, formats a module and a line in EXPORTS. No values are invented: a value that a tool or a
run did not record stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.records import Json, Rollout, Scale

if TYPE_CHECKING:
    from pytest_agentbench.exports.files import ChosenRuns


@dataclass(frozen=True)
class Source:
    """The results of another tool in one directory, converted for an imported run. A Reader returns it."""

    suite: str  # name of the suite; `--suite` overrides it
    scores: Sequence[str]  # under the tool's own names, the main one first
    rollouts: Iterator[Rollout]  # one at a time, in the order of their scenarios
    stopwatch: str  # sentence on who measured the times, and what they cover
    planned: int  # number of planned rollouts, as far as the tool reports it
    notes: list[str]  # sentences on missing or doubtful data; complete after the rollouts were read
    dataset: str = ""  # the data file that the tool names
    agents: Mapping[str, Json] = field(default_factory=lambda: {"default": {}})  # variant -> settings
    model: str | None = None
    concurrency: int | None = None  # requested concurrency
    facts: Json = field(default_factory=dict)  # totals that belong to no rollout
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # variant -> score -> the mean that the tool gives
    scales: Mapping[str, Scale] = field(default_factory=dict)  # score -> its scale, if the tool's results show it
    averages: str = ""  # half a sentence on how the tool's means differ from a run's


#: `read(path) -> Source`; raises ConfigError with the file and what is wrong with it.
Reader = Callable[[Path], Source]

TOOLS: Mapping[str, str] = {
    "nat": "pytest_agentbench.exports.nat:read",
    "toolorchestra": "pytest_agentbench.exports.toolorchestra:read",
    "harbor": "pytest_agentbench.exports.harbor:read",
}

#: Tool -> function that finds the results in a directory that may hold several. Each result is a run: `results(path) -> [path, ...]`.
SEVERAL: Mapping[str, str] = {"nat": "pytest_agentbench.exports.nat:jobs"}

#: Formats in the order of the help.
EXPORTS: Mapping[str, str] = {
    "csv": "pytest_agentbench.exports.csv_files:write",
    "parquet": "pytest_agentbench.exports.parquet_files:write",
    "pytest-benchmark": "pytest_agentbench.exports.benchmark_json:write",
    "perfetto": "pytest_agentbench.exports.perfetto:write",
    "nat": "pytest_agentbench.exports.nat_job:write",
    "atif": "pytest_agentbench.exports.harbor_job:write",
    "toolorchestra": "pytest_agentbench.exports.toolorchestra_run:write",
    "mooncake": "pytest_agentbench.exports.mooncake:write",
    "aiperf": "pytest_agentbench.exports.aiperf:write",
    "otel": "pytest_agentbench.exports.otel:write",
}


#: `write(chosen, directory) -> None`: writes its files to an existing, empty directory. Raises ConfigError for runs that the tool could
#: not use.
Writer = Callable[["ChosenRuns", Path], None]


def load_writer(name: str) -> Writer:
    """Returns the function that writes runs in a format. Raises ConfigError for an unknown format."""
    writer: Writer = load_object("format", name, EXPORTS, Path())
    return writer


def load_reader(tool: str) -> Reader:
    """Returns the function that reads the results of a tool. Raises ConfigError for an unknown tool."""
    reader: Reader = load_object("tool", tool, TOOLS, Path())
    return reader


def results_in(tool: str, path: Path) -> list[Path]:
    """Returns the directories at a path that become one imported run each: the path itself or, for some tools, directories in it."""
    if tool not in SEVERAL:
        return [path]
    directories: list[Path] = load_object("tool", tool, SEVERAL, Path())(path)
    return directories
