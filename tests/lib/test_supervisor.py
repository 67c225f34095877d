"""Supervisors start fast, because one is started for each rollout."""

from __future__ import annotations

import subprocess

import pytest

from pytest_agentbench.lib.supervisor import supervisor_command

LOADED = "print(*(name for name in sys.modules if name.startswith('pytest_agentbench') or name in ('site', 'dataclasses')))"


@pytest.mark.parametrize(("name", "more"), [("program", {"pytest_agentbench.lib.cut_marks"}), ("mcp_server", set())])
def test_a_supervisor_loads_little_of_the_package(name: str, more: set[str]) -> None:
    """A supervisor imports neither site-packages nor the records, because that would take longer than running a small program."""
    module = f"pytest_agentbench.lib.supervisor.{name}"
    *options, code = supervisor_command(module)
    run = subprocess.run([*options, code.replace("main()", LOADED)], capture_output=True, text=True, check=True)

    assert {"pytest_agentbench", "pytest_agentbench.lib", "pytest_agentbench.lib.supervisor", module} | more == set(run.stdout.split())
