"""This package as a pin of environments: it is importable, and another path or other dependencies mean another folder."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine import virtual_environments
from pytest_agentbench.backends.machine.virtual_environments import EnvironmentSpec
from pytest_agentbench.lib.process import foreign_environment
from tests.project import ROOT

#: Prints what an interpreter without other packages finds in the given folder.
FOUND = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib.metadata import entry_points, version
import pytest_agentbench
from pytest_agentbench.lib.file_system import shipped
(plugin,) = entry_points(group="pytest11")
print(version("pytest-agentbench"), plugin.value, shipped("backends"), pytest_agentbench.__file__, sep="\\n")
"""


def test_a_link(tmp_path: Path) -> None:
    """The package is imported through the link, with its version, entry points and data files."""
    virtual_environments.link_into(tmp_path)

    command = [sys.executable, "-I", "-S", "-c", FOUND, str(tmp_path)]
    done = subprocess.run(command, env=foreign_environment(), capture_output=True, text=True, check=False)

    (plugin,) = (each.value for each in entry_points(group="pytest11", name="agentbench"))
    place = str(tmp_path / "pytest_agentbench/__init__.py")
    assert (0, [version("pytest-agentbench"), plugin, str(ROOT / "backends"), place]) == (done.returncode, done.stdout.splitlines())


def test_what_it_needs() -> None:
    """Returns each dependency with its marker, without those of extras."""
    needed = virtual_environments.requirements()

    assert "uvloop>=0.21; sys_platform != 'win32'" in needed
    assert [] == [each for each in needed if each.startswith(("harbor", "matplotlib"))]


def test_the_folder_depends_on_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's folder changes with the package's path and dependencies. pip installs the dependencies."""
    spec = EnvironmentSpec("with us", ("bare==1.0", "pytest-agentbench"))
    here = spec.home
    assert ("bare==1.0", *virtual_environments.requirements()) == spec.from_index

    with monkeypatch.context() as changed:
        changed.setattr(virtual_environments, "package_folder", lambda: Path("/elsewhere"))
        elsewhere = spec.home
    with monkeypatch.context() as changed:
        changed.setattr(virtual_environments, "requirements", lambda: ["other"])
        with_more = spec.home

    assert 3 == len({here, elsewhere, with_more})
    assert here == spec.home
