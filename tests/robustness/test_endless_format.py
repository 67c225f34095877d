"""If a suite's own data format does not end, the suite is an error, and the session ends."""

from __future__ import annotations

import pytest

from tests.project import Project

#: This is loaded before the suites, so that the test does not have to wait for five minutes.
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
    """If a format blocks forever, an error names the suite.yaml, the format and the seconds."""
    project.suite(dataset={"format": "./reader.py:load", "file": "data.json"})
    project.write("scenarios/shop/reader.py", code)
    project.write("conftest.py", SHORT)

    result = project.run("scenarios/shop")

    assert 0 != result.ret
    words = " ".join(" ".join(result.outlines).split())
    assert "suite.yaml: dataset format './reader.py:load' did not end within 0.5 s; it should only read the data" in words
