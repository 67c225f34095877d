"""A small project with a suite on the embedded engine for acceptance tests, run by a real pytest in a real process."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.journal import read_journal

ROOT = Path(__file__).parents[1]

TOOLS: list[Json] = [
    {
        "title": name,
        "description": description,
        "type": "object",
        "properties": {"item": {"type": "string", "description": "what it is about"}, "count": {"type": "integer"}},
        "required": ["item"],
        "response_schema": {"type": "object", "properties": {"done": {"type": "boolean"}}},
    }
    for name, description in (
        ("find_item", "Finds an item in the shop."),
        ("order_item", "Orders an item."),
        ("return_item", "Takes an item back."),
    )
]

#: The engine's first answer calls find_item, its second one is text.
FIND_THEN_ANSWER: list[Json] = [
    {"match": {"turn": 0}, "tool_calls": [{"name": "find_item", "arguments": {"item": "lamp"}}]},
    {"text": "Here is what was found for you."},
]

TEST_FILE = """
def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
"""

BROKEN_ONCE = """
import pathlib
from pytest_agentbench import InfraError

async def run(scenario, llm):
    if not pathlib.Path("repaired").exists():
        raise InfraError("the network is down")
    await llm.chat(scenario.messages)
"""

#: Plugins of the development environment. Loading them would cost each process of a session half a second of CPU.
OTHER_PLUGINS = (
    *("anyio", "benchmark", "env", "html", "html_fixtures", "hypothesispytest", "metadata"),
    *("pytest_cov", "pytest_mock", "randomly", "rerunfailures", "timeout"),
)


ALONE = tuple(word for name in OTHER_PLUGINS for word in ("-p", f"no:{name}"))

#: A pytest in a process without the other plugins.
PYTEST = (sys.executable, "-u", "-m", "pytest", *ALONE)

TWO_WORKERS = ("-n", "2", "--agentbench-workers=2")

#: For a test that expects the same in one process and with two workers. The latter takes twice as long and is slow.
WAYS = pytest.mark.parametrize("way", [pytest.param((), id="one-process"), pytest.param(TWO_WORKERS, id="n2", marks=pytest.mark.slow)])

#: For a test that expects something else with one process than with two workers. Both are quick.
BOTH_WAYS = pytest.mark.parametrize("way", [(), TWO_WORKERS], ids=["one-process", "n2"])


def family(names: str, cases: Mapping[str, Sequence[Any]], workers: str) -> pytest.MarkDecorator:
    """Runs the cases of a test in one process each, and the case `workers` also with two workers.

    `names` are the names of a case's values, as for pytest.mark.parametrize. `way` comes after them.
    """
    params = [pytest.param(*values, (), id=id) for id, values in cases.items()]
    params.append(pytest.param(*cases[workers], TWO_WORKERS, id=f"{workers}-n2", marks=pytest.mark.slow))
    return pytest.mark.parametrize(f"{names},way", params)


def without_waits(backend: Path) -> None:
    """Makes an embedded engine answer at once."""
    backend.write_text(re.sub(r"(ttft_ms|itl_ms): \d+", r"\1: 0", backend.read_text(encoding="utf-8")), encoding="utf-8")


def page(result: pytest.RunResult) -> list[str]:
    """Returns the lines of our section at the end of a session."""
    first = next(number for number, line in enumerate(result.outlines) if line.strip("=") == " agentbench ")
    return [*result.outlines[first + 1 : next(n for n in range(first + 1, len(result.outlines)) if result.outlines[n].startswith("=="))]]


#: Replaces the project's path in files of a run that several projects share.
PLACE = "/place/of/the/project"


def _rewrite(reports: Path, old: str, new: str) -> None:
    """Replaces a path in the runs in reports/."""
    for run in reports.glob("*/run.json"):
        run.write_text(run.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


class Project:
    """A directory with suites and backends, and a way to run pytest in it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester, self.root = pytester, pytester.path
        pytester.makeini("[pytest]\naddopts = --import-mode=importlib\nasyncio_default_fixture_loop_scope = function\n")
        self.backend()

    def shipped(self, suite: str) -> None:
        """Copies a suite of this repository, and the embedded engine, which does not wait."""
        shutil.copytree(ROOT / "scenarios" / suite, self.root / "scenarios" / suite, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "backends" / "embedded.yaml", self.root / "backends")
        without_waits(self.root / "backends" / "embedded.yaml")

    def backend(self, rules: Sequence[Json] = FIND_THEN_ANSWER, name: str = "embedded", **keys: Any) -> None:
        """Writes backends/NAME.yaml: the embedded engine, answering from a script."""
        self.write(f"backends/{name}.script.yaml", json.dumps(list(rules)))
        self.write(f"backends/{name}.yaml", json.dumps({"kind": "embedded", "policy": "script", "script": f"{name}.script.yaml", **keys}))

    def suite(
        self, name: str = "shop", scenarios: int = 3, test: str = TEST_FILE, expected: Sequence[str] = ("find_item",), **keys: Any
    ) -> Path:
        """Writes scenarios/NAME with scenarios `shop-0` and on, each of which expects the given tools. Returns the suite.yaml."""
        entries = [self.entry(f"{name}-{number}", expected) for number in range(scenarios)]
        spec = {
            "name": name,
            "dataset": {"format": "agent-leaderboard", "file": "data.json"},
            "agent": {"kind": "tool_calling"},
            "scorers": ["tsq"],
            "thresholds": {"tsq": 0.5},
            **keys,
        }
        self.write(f"scenarios/{name}/data.json", json.dumps(entries))
        self.write(f"scenarios/{name}/test_{name}.py", test)
        return self.write(f"scenarios/{name}/suite.yaml", json.dumps(spec))

    @staticmethod
    def entry(id: str, expected: Sequence[str] = ("find_item",)) -> Json:
        """Returns one data entry in the agent-leaderboard format."""
        return {
            "id": id,
            "question": f"Customer {id}: is there a lamp?",
            "ground_truth": "User goals:\n- find a lamp",
            "metadata": {"label_source": "hand"},
            "user_goals": ["find a lamp"],
            "available_tools": TOOLS,
            "expected_tool_calls": [{"tool": tool, "parameters": {"item": "lamp"}, "goal": "find a lamp"} for tool in expected],
        }

    def broken_once(self) -> None:
        """Writes a suite whose first session cannot measure. The second one can."""
        self.suite(agent={"kind": "./agent.py:run"}, thresholds={}, test="def test_answer(rollout):\n    assert rollout.status == 'ok'\n")
        self.write("scenarios/shop/agent.py", BROKEN_ONCE)
        self.write("conftest.py", "def pytest_unconfigure():\n    open('repaired', 'w').close()\n")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments: str) -> pytest.RunResult:
        """Runs pytest in another process, without the other plugins of this environment, except for those named with -p."""
        return self.pytester.runpytest_subprocess(*ALONE, *arguments, timeout=300)

    def run_once(self, *arguments: str) -> None:
        """Fills reports/ like a run with these arguments. Tests with equal projects share that run."""
        kept = self.root.parent / f"kept-{self._digest(arguments)}"
        if not kept.exists():
            self.run(*arguments)
            shutil.copytree(self.root / "reports", kept, symlinks=True)
            _rewrite(kept, str(self.root), PLACE)
            return
        shutil.copytree(kept, self.root / "reports", symlinks=True, dirs_exist_ok=True)
        _rewrite(self.root / "reports", PLACE, str(self.root))

    def _digest(self, arguments: Sequence[str]) -> str:
        """Returns a digest of these arguments and all files of the project."""
        files = sorted(path for path in self.root.rglob("*") if path.is_file())
        texts = (text for path in files for text in (str(path.relative_to(self.root)).encode(), path.read_bytes()))
        return hashlib.sha256(b"\0".join((repr(arguments).encode(), *texts))).hexdigest()[:16]

    def good_run(self, name: str) -> None:
        """Makes a run without failures, and keeps it under this name."""
        self.run_once("scenarios/shop")
        assert 0 == self.run_json["exit_status"]
        self.directory.rename(self.root / "reports" / name)

    @property
    def directory(self) -> Path:
        """Returns the newest run directory."""
        return (self.root / "reports" / "latest").resolve()

    @property
    def run_json(self) -> Json:
        run: Json = json.loads((self.directory / "run.json").read_text())
        return run

    @property
    def rollouts(self) -> list[Rollout]:
        return [*read_journal(self.directory)]
