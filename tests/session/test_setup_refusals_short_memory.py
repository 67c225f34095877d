"""Sessions that start under a limit of memory or of open files."""

from __future__ import annotations

import resource

import pytest

from pytest_agentbench.session.setup import shortage_as_usage_error
from tests.project import Project
from tests.robustness.processes import limited


@pytest.mark.parametrize("error", [MemoryError(), ImportError("x.so: failed to map segment from shared object")], ids=["memory", "import"])
def test_want_of_memory_is_explained(error: Exception) -> None:
    """An error caused by too little memory becomes a usage error."""
    with pytest.raises(pytest.UsageError, match="there is too little memory"), shortage_as_usage_error():
        raise error


def test_other_errors_stay() -> None:
    """A missing module is not reported as too little memory."""
    with pytest.raises(ImportError, match="No module named 'x'"), shortage_as_usage_error():
        raise ImportError("No module named 'x'")


@pytest.mark.slow
@pytest.mark.parametrize("mib", [160, 200])
def test_too_little_address_space(project: Project, mib: int) -> None:
    """A session that needs more than `ulimit -v` ends with one sentence before anything starts.

    Under a much lower limit pytest itself runs out of memory, wherever that happens.
    """
    project.suite(scenarios=1)

    done = limited(project, resource.RLIMIT_AS, mib << 20)

    assert pytest.ExitCode.USAGE_ERROR == done.returncode, done.stdout + done.stderr
    assert "MiB of address space" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert [] == [*project.root.glob("reports/2*")]


def test_very_few_open_files(project: Project) -> None:
    """A session that may open only sixteen files ends with one sentence."""
    project.suite(scenarios=1)

    done = limited(project, resource.RLIMIT_NOFILE, 16)

    assert pytest.ExitCode.USAGE_ERROR == done.returncode, done.stdout + done.stderr
    assert "open files in a process, and 16 are allowed" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
