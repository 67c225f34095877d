"""`sandbox: harbor:NAME` if Harbor or a requirement of its environment is missing.

Tests with Harbor are in tests/real/test_harbor_both_ways.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.rollouts.compile import checked
from pytest_agentbench.sandbox.harbor_sandbox import TELEMETRY, check_sandbox, compose_problem
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.hashes import ContentHashes
from tests.tasks import write_task

ROOT = Path(__file__).parents[2]
INSTALL = "needs the package `harbor`, which is not installed here: pip install 'pytest-agentbench[harbor]', under Python 3.12 or newer"

without_harbor = pytest.mark.skipif(importlib.util.find_spec("harbor") is not None, reason="the package `harbor` is installed here")


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    """Returns the suite.yaml of a suite with one task, in a sandbox of Harbor."""
    write_task(tmp_path / "tasks")
    file = tmp_path / "suite.yaml"
    file.write_text(
        "name: ours\ndataset: {format: harbor, file: tasks}\nsandbox: harbor:daytona\nagent: {kind: terminal}\nscorers: [reward]\n"
    )
    return file


@without_harbor
def test_harbor_is_missing(suite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite and an import that need Harbor are refused. The message says what to install, and names this Python if it is too old."""
    monkeypatch.setenv(TELEMETRY, "1")
    old = f"; this is Python {sys.version_info.major}.{sys.version_info.minor}" if sys.version_info < (3, 12) else ""
    with pytest.raises(ConfigError) as refused:
        checked(load_suite(suite_file))
    with pytest.raises(ConfigError) as not_imported:
        importlib.import_module("pytest_agentbench.harbor")

    assert f"{suite_file}: sandbox: harbor:daytona {INSTALL}{old}" == str(refused.value)
    assert f"pytest_agentbench.harbor {INSTALL}{old}" == str(not_imported.value)
    assert "1" == os.environ[TELEMETRY]


def test_telemetry_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telemetry is off, unless the user has turned it on."""
    monkeypatch.setenv(TELEMETRY, "")
    monkeypatch.delenv(TELEMETRY)
    check_sandbox("docker")

    assert TELEMETRY not in os.environ
    with suppress(ConfigError):  # if Harbor is not installed
        check_sandbox("harbor:docker")
    assert "0" == os.environ[TELEMETRY]


def test_a_task_knows_its_sandbox(suite_file: Path) -> None:
    """The suite's sandbox is part of the settings that a rollout depends on. An unknown sandbox is refused with the known ones."""
    suite = load_suite(suite_file)
    (scenario,) = suite.scenarios
    assert scenario.task is not None and "harbor:daytona" == scenario.task.sandbox
    other = replace(suite, scenarios=(replace(scenario, task=replace(scenario.task, sandbox="docker")),))
    hashes = [ContentHashes({"ours": each}, "b", lambda _suite, _variant: {})._scenario(each, scenario.id) for each in (suite, other)]
    assert hashes[0] != hashes[1]

    for wrong in ("harbor:", "podman"):
        with pytest.raises(ConfigError, match=f"sandbox: .*must be docker, or harbor:NAME, .* of Harbor, not '{wrong}'"):
            load_suite(suite_file, [("sandbox", wrong)])


@pytest.mark.parametrize(("says", "fits"), [("echo 2.26.1-4", True), ("echo v5.0.0", True), ("echo 1.29.2", False), ("exit 1", False)])
def test_docker_compose_is_required(says: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment `docker` of Harbor needs Docker Compose 2. If it is missing, the message names it."""
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert ("" if fits else "Harbor's `docker` needs Docker Compose version 2 (`docker compose`), which is not installed") == (
        compose_problem().partition("; ")[0]
    )
