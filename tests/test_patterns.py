"""The time of each regular expression of the package grows linearly with the text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_patterns_need_linear_time() -> None:
    """Every pattern of the package handles 60,000 characters that are hard for it within its budget.

    Models, tools, logs and other programs decide which text is searched. A pattern of quadratic time needs hours for a megabyte of it.
    """
    done = subprocess.run([sys.executable, "-m", "tests.patterns"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)

    assert ([], []) == (found["slow"], found["unknown"])
    assert found["patterns"] > 150
