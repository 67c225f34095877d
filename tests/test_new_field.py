"""A field that is added to a record or a message arrives in all processes without another change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package_copy import PackageCopy, write_project
from tests.project import PYTEST

#: The scenario's field gets its value from the suite's format. The message's field gets its sender's process id, so it is not constant.
SCENARIO_FIELD = '    fresh: str = ""\n'
MESSAGE_FIELD = '    fresh: int = field(default_factory=__import__("os").getpid)\n'

#: Answers with the scenario's field, and with those of the messages of its process, with and without isolation.
AGENT = """
import gc, os
from pytest_agentbench.lib.wire import Hello

def run(scenario, llm, tools):
    senders = {each.fresh for each in gc.get_objects() if isinstance(each, Hello)}
    return " ".join((scenario.fresh, *map(str, senders - {os.getpid()})))
"""
SUITE = (
    "name: NAME\ndataset: {format: ./code.py:load, file: data.txt}\nagent: {kind: ./code.py:run}\nscorers: [exact]\nisolation: ISOLATION\n"
)
LOADER = """
from pytest_agentbench import Scenario

def load(file):
    yield Scenario("s-0", ({"role": "user", "content": "A lamp?"},), fresh="a fresh lamp")
"""
TEST = """
import os

def test_fresh(scenario, rollout):
    assert scenario.fresh == "a fresh lamp"
    assert rollout.answer == f"a fresh lamp SENDER".strip()
"""
PROJECT = {
    "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\nasyncio_default_fixture_loop_scope = function\n",
    "backends/embedded.yaml": "{kind: embedded}",
    **{
        f"scenarios/{name}/{file}": text.replace("NAME", name).replace("ISOLATION", isolation).replace("SENDER", sender)
        for name, isolation, sender in (("shop", "none", "{os.getpid()}"), ("alone", "process", ""))
        for file, text in {"suite.yaml": SUITE, "data.txt": "", "code.py": AGENT + LOADER, f"test_{name}.py": TEST}.items()
    },
}


@pytest.mark.slow
def test_a_field_arrives(tmp_path: Path) -> None:
    """A field of `Scenario` arrives in tests, in the pool and in the process of a rollout. A field of `Hello` arrives in the pool."""
    copy = PackageCopy(tmp_path / "copy")
    copy.replace("suites/suite.py", "    final_state: Json | None = None", f"{SCENARIO_FIELD}    final_state: Json | None = None")
    copy.replace("lib/wire.py", "    protocol: int = PROTOCOL\n", f"    protocol: int = PROTOCOL\n{MESSAGE_FIELD}")
    write_project(tmp_path / "project", PROJECT)

    assert "2 passed" in copy.run(*PYTEST, "--agentbench-backend=embedded", folder=tmp_path / "project")
