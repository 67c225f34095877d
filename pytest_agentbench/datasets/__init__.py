"""Dataset formats: each turns a data file into scenarios. A new one is a file here with `load` and a line in FORMATS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pytest_agentbench.datasets import agent_leaderboard
from pytest_agentbench.scenarios import Scenario

#: (data file, tools file or None) -> scenarios; raises ConfigError that names the file and what is wrong in it.
Format = Callable[[Path, Path | None], Iterable[Scenario]]

FORMATS: Mapping[str, Format] = {"agent-leaderboard": agent_leaderboard.load}
