"""How many xdist workers start with `-n`, and why. One worker is enough for the tests of a suite, which usually only read rollouts.

Measured with the banking suite: a worker costs 0.9 s of CPU until it has collected, and 5 ms for each test (10 ms for one that fails).
The controller needs as much for each test's record and report, so a second worker would only wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_agentbench.session.discovery import DiscoveredSuites, argument_path, is_left_out
from pytest_agentbench.suites.suite import SUITE_FILE


class Workers(NamedTuple):
    """The xdist workers of a session."""

    specs: Sequence[str]  # one for each worker, as --tx has it
    reason: str = ""  # why there are so many; empty if --tx names each of them, or if there are none

    @property
    def sentence(self) -> str:
        """What the header says of them; empty without a reason."""
        count = len(self.specs)
        return f"{count} xdist worker{' starts' if count == 1 else 's start'}: {self.reason}" if self.reason else ""


def choose_workers(config: pytest.Config, discovered: DiscoveredSuites, typed: Sequence[str], asked: int | None) -> Workers:
    """Returns the workers to start. `typed` are those of the command line, as --tx has them; `asked` is --agentbench-workers.

    If suites and paths ask for different numbers, the largest counts: a suite asks for its `xdist_workers`, or one, and a path that does
    not lie in the folder of a suite asks for as many as -n says.
    """
    if not typed or not config.getoption("numprocesses", None):  # --tx without -n names each of them
        return Workers(typed)
    if asked is not None:
        return Workers([typed[0]] * asked, "--agentbench-workers says so")
    if config.getoption("dist") == "each":
        return Workers(typed, "-n says so, and with --dist=each every one of them runs all tests")
    reasons = {1: "every path is in the folder of a suite (--agentbench-workers=N starts N)"}
    marks, names = config.getoption("markexpr", ""), discovered.names
    for each in (each for each in discovered.compiled if not is_left_out(each.name, marks, names)):
        if each.suite.xdist_workers:
            reasons[each.suite.xdist_workers] = f"xdist_workers in {_shown(each.folder / SUITE_FILE)} says so"
    folders = {*discovered.folders}
    for path in map(argument_path, config.args):
        if folders.isdisjoint((path, *path.parents)):
            reasons[len(typed)] = f"-n says so, and {_shown(path)} is not in the folder of a suite (--agentbench-workers=N starts N)"
    count = max(reasons)
    return Workers([typed[0]] * count, reasons[count])


def _shown(path: Path) -> str:
    return os.path.relpath(path)
