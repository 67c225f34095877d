"""Dataset formats: each turns data into scenarios. A new one is a file here with `load` and a line in FORMATS or PACKAGES."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pytest_agentbench.suites.datasets import agent_leaderboard, bfcl
from pytest_agentbench.suites.datasets.packaged import Packaged
from pytest_agentbench.suites.suite import Scenario

#: (data file, tools file or None) -> scenarios; raises ConfigError that names the file and what is wrong in it.
Format = Callable[[Path, Path | None], Iterable[Scenario]]

#: Of files that a suite has beside it.
FORMATS: Mapping[str, Format] = {"agent-leaderboard": agent_leaderboard.load}

#: Of data that comes with a package; raises MissingData where it is not installed.
PACKAGES: Mapping[str, Callable[[], Packaged]] = {"bfcl": bfcl.load}
