"""No regular expression of the package takes longer than its text is long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_patterns_need_linear_time() -> None:
    """Every pattern of the package is read from the code, and is done with 60,000 characters that are hard for it within its budget.

    Models, tools, logs and files of others decide what is searched; a pattern of quadratic time needs hours for a megabyte of them.
    """
    done = subprocess.run([sys.executable, "-m", "tests.patterns"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)

    assert ([], []) == (found["slow"], found["unknown"])
    assert found["patterns"] > 150
