"""How many xdist workers start: `-n` says how many rollouts are in flight; where tests only read them, one worker reads them all.

Measured with the banking suite: a worker costs 0.9 s of CPU until it has collected, and 5 ms for each test (10 ms for one that fails).
The controller needs as much for each test's record and report, so a second worker would only wait for it.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_agentbench.session.discovery import DiscoveredSuites, is_skipped
from pytest_agentbench.session.testfiles import only_reads
from pytest_agentbench.suites.task import is_task_directory

READERS = 1  # workers where tests only read rollouts


def readers(config: pytest.Config, discovered: DiscoveredSuites, typed: Sequence[str], count: int | None) -> list[str]:
    """The workers to start, as --tx has them, of those that were typed; `count` is --agentbench-workers."""
    if not typed or not config.getoption("numprocesses", None):  # --tx without -n names each of them
        return [*typed]
    if count is not None:
        return [typed[0]] * count
    if config.getoption("dist") == "each" or not _only_read(config, discovered):
        return [*typed]
    return [*typed[:READERS]]


def sentence(typed: Sequence[str], started: Sequence[str]) -> str:
    """What the header says of fewer workers than were typed."""
    return f"{len(started)} of {len(typed)} workers starts, the tests only read rollouts (--agentbench-workers={len(typed)} starts all)"


def _only_read(config: pytest.Config, discovered: DiscoveredSuites) -> bool:
    """Whether all tests that the command line leads to only read rollouts."""
    suites = dict(
        zip(discovered.folders, [each.name for each in discovered.compiled] + [each.name for each in discovered.unusable], strict=True)
    )
    named = config.getoption("markexpr", "")
    if config.getoption("doctestmodules", False):
        return False
    for file in _test_files(config, suites):
        suite = next((suites[folder] for folder in file.parents if folder in suites), None)
        if suite is None:
            return False
        selected = suite == named or named not in suites.values()
        if selected and not only_reads(file, _conftests(file, config.rootpath), config.getini("python_functions")):
            return False
    return True


def _test_files(config: pytest.Config, suites: Container[Path]) -> Iterator[Path]:
    """What pytest takes for test files below the paths of the command line, and paths of it that are no folders.

    Those of a task in the folder of one of the `suites` are its verifier's.
    """
    patterns = [*config.getini("python_files"), *(config.getoption("doctestglob", None) or ["test*.txt"])]
    for arg in config.args:
        path = Path(os.path.abspath(arg.split("::", 1)[0]))  # noqa: PTH100 - pytest's own paths do not follow links either
        if not path.is_dir():
            yield path
            continue
        for folder, names, files in os.walk(path):
            if is_task_directory(Path(folder)) and any(each in suites for each in Path(folder).parents):
                names.clear()
                continue
            names[:] = [name for name in names if not is_skipped(Path(folder, name), config.getini("norecursedirs"))]
            yield from (Path(folder, file) for file in files if any(fnmatch.fnmatch(file, pattern) for pattern in patterns))


def _conftests(file: Path, root: Path) -> list[Path]:
    """Those that apply to a test file, outermost first."""
    folders = [each for each in reversed(file.parents) if each == root or root in each.parents]
    return [conftest for each in folders if (conftest := each / "conftest.py").is_file()]
