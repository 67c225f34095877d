"""A data format of a suite's own that does not end: its suite is an error, and the session ends."""

from __future__ import annotations

import pytest

from tests.project import Project

#: Loaded before the suites are, so that the test need not wait for five minutes.
SHORT = "from pytest_agentbench.suites import datasets\n\ndatasets.LIMIT = 0.5\n"

READS = """
import time

def load(file):
    while True:
        try:
            time.sleep(3600)
        except Exception:
            pass
"""

IMPORTS = "import threading\n\nthreading.Event().wait()\n"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("code", [READS, pytest.param(IMPORTS, marks=pytest.mark.slow)], ids=["reads", "imports"])
def test_a_format_that_does_not_end(project: Project, code: str) -> None:
    """A format that blocks for ever ends in an error that names the suite.yaml, the format and the seconds."""
    project.suite(dataset={"format": "./reader.py:load", "file": "data.json"})
    project.write("scenarios/shop/reader.py", code)
    project.write("conftest.py", SHORT)

    result = project.run("scenarios/shop")

    assert 0 != result.ret
    words = " ".join(" ".join(result.outlines).split())
    assert "suite.yaml: dataset format './reader.py:load' did not end within 0.5 s; it should only read the data" in words
