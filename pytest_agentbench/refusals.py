"""What cannot be asked of a session as a whole; each is a usage error that says what would work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pluggy
import pytest

from pytest_agentbench.discovery import Found


def refuse_distant(workers: Sequence[str]) -> None:
    """The pool listens on loopback, so that whoever asks it for rollouts has to be on this machine."""
    for spec in workers:
        if not spec.startswith("popen") or "via=" in spec:
            raise pytest.UsageError(f"agentbench needs workers on this machine, not {spec}; use -n or --tx popen")


def refuse_misspelt_hooks(config: pytest.Config) -> None:
    """Pytest looks for hooks that do not exist when it collects: with xdist in the workers only, whose end need not fail the session."""
    try:
        config.pluginmanager.check_pending()
    except pluggy.PluginValidationError as error:
        raise pytest.UsageError(str(error)) from error


def refuse_twins(found: list[Found]) -> None:
    """A suite's name is its marker and part of every rollout's key, so no two may share it."""
    folders: dict[str, Path] = {}
    for each in found:
        if each.suite and (twin := folders.setdefault(each.name, each.folder)) != each.folder:
            raise pytest.UsageError(f"two suites are named {each.name!r}: {twin / 'suite.yaml'} and {each.folder / 'suite.yaml'}")
