"""conftest.py of the project's own tests in a clone after `make bench`, which does not install what they need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import child_environment
from tests.project import PYTEST, ROOT

#: A plugin that makes the package `hypothesis` look as if it were not installed.
WITHOUT = "import sys\nsys.modules['hypothesis'] = None\n"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("scenarios/bankng", "ERROR: file or directory not found: scenarios/bankng (did you mean 'scenarios/banking'?)"),
        ("tests/test_errors.py", "the packages that the project's own tests need are not installed; run `make test`"),
    ],
)
def test_a_clone_without_the_packages_of_its_tests(tmp_path: Path, path: str, sentence: str) -> None:
    """A misspelt path is reported as such, and the project's own tests say what installs their packages."""
    (tmp_path / "without_hypothesis.py").write_text(WITHOUT)
    words = (*PYTEST, "-p", "without_hypothesis", "-p", "no:cacheprovider", path)

    done = subprocess.run(
        words, cwd=ROOT, env={**child_environment(), "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert pytest.ExitCode.USAGE_ERROR == done.returncode
    assert sentence in f"{done.stdout}{done.stderr}".splitlines()
    assert "ImportError" not in done.stdout + done.stderr
