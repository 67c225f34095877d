"""A temporary project for benchmarks: a suite on a scripted engine, and a directory with empty tests for comparison."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measurement import BenchmarkError
from pytest_agentbench.engine.token_blocks import tokenise
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.run_file import Run, read_run

INI = "[pytest]\naddopts = -q --import-mode=importlib -p no:randomly -p no:cacheprovider\nasyncio_default_fixture_loop_scope = function\n"
BARE = ("-p", "no:agentbench", "bare")  # pytest arguments of the arm without us
SUITE = "scenarios/bench"

SUITE_TEST = """
def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
"""
BARE_TEST = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_nothing(number):
    pass
"""

TOOLS = 20
MOST_TURNS = 4


class Workplace:
    """A temporary project in the directory `root`, in which benchmarks run pytest. Run directories are in reports/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pytest.ini", INI)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def suite(self, turns: Sequence[int], test: str = SUITE_TEST) -> None:
        """Writes the suite scenarios/bench. Scenario i consists of turns[i] turns with a tool call, and then an answer."""
        spec = {
            "name": "bench",
            "dataset": {"format": "agent-leaderboard", "file": "data.json", "tools": "tools.json"},
            "thresholds": {"tsq": 0.5},
        }
        self.write(f"{SUITE}/suite.yaml", json.dumps(spec))
        self.write(f"{SUITE}/tools.json", json.dumps([tool(number) for number in range(TOOLS)]))
        self.write(f"{SUITE}/data.json", json.dumps([entry(number, needed) for number, needed in enumerate(turns)]))
        self.write(f"{SUITE}/test_bench.py", test)

    def bare(self, count: int) -> None:
        """Writes the directory bare/ with this number of tests that do nothing."""
        self.write("bare/test_bare.py", BARE_TEST.format(count=count))

    def backend(self, tokens: int, ttft_ms: float = 0, itl_ms: float = 0) -> None:
        """Writes the backend: an embedded engine whose answers all have this number of tokens."""
        self.write("backends/embedded.script.json", json.dumps(rules(tokens)))
        keys = {"kind": "embedded", "policy": "script", "script": "embedded.script.json", "ttft_ms": ttft_ms, "itl_ms": itl_ms}
        self.write("backends/embedded.yaml", json.dumps(keys))

    @property
    def runs(self) -> list[Path]:
        """The run directories, oldest first."""
        found = [path for path in (self.root / "reports").glob("*/") if not path.is_symlink()]
        return sorted(found, key=lambda path: path.stat().st_ctime_ns)

    def last_run(self, calls: int) -> Run:
        """Returns the newest run. Raises BenchmarkError if it does not have exactly `calls` LLM calls, all without errors."""
        run = read_run((self.root / "reports" / "latest").resolve())
        performance = run.performance
        if (performance.calls, performance.failed_calls) != (calls, {}):
            raise BenchmarkError(f"{performance.calls} LLM calls instead of {calls}; failed: {performance.failed_calls}")
        return run

    def last_rollouts(self) -> list[Rollout]:
        return [*read_journal((self.root / "reports" / "latest").resolve())]


@contextmanager
def workplace() -> Iterator[Workplace]:
    with tempfile.TemporaryDirectory(prefix="agentbench-benchmark-") as directory:
        yield Workplace(Path(directory).resolve())


def hundred() -> list[int]:
    """Returns the numbers of tool turns of a hundred scenarios, which make 350 LLM calls with the answers."""
    return [1 + number % MOST_TURNS for number in range(100)]


def calls_of(turns: Sequence[int]) -> int:
    return sum(turns) + len(turns)


def processes(run: Run) -> dict[str, float]:
    """Returns the CPU seconds of pool, tap and engine."""
    return {name: run.processes[name].cpu_s for name in ("pool", "tap", "engine")}


def tool(number: int) -> Json:
    """Returns the schema of a tool, about 500 bytes in every request."""
    words = "the record of the customer that this desk looks after"
    properties = {
        "account": {"type": "string", "description": f"number of the account that holds {words}"},
        "reason": {"type": "string", "enum": ["asked by the customer", "asked by the bank", "required by law"]},
        "amount": {"type": "number", "description": "in the currency of the account, never below zero"},
    }
    response = {"type": "object", "properties": {"done": {"type": "boolean"}, "reference": {"type": "string"}}}
    return {
        "title": f"desk_tool_{number:02}",
        "description": f"Changes {words}, in the way that desk {number} does it.",
        "type": "object",
        "properties": properties,
        "required": ["account"],
        "response_schema": response,
    }


def entry(number: int, turns: int) -> Json:
    """Returns a scenario. Its question contains the number of tool turns, which the script of the engine matches."""
    called = [{"tool": f"desk_tool_{turn:02}", "parameters": {}, "goal": "have it done"} for turn in range(turns)]
    return {
        "id": f"bench-{number:05}",
        "question": f"Customer {number} has {turns} wishes: please see to every one of them.",
        "metadata": {"label_source": "hand"},
        "user_goals": ["have it done"],
        "expected_tool_calls": called,
    }


def rules(tokens: int) -> list[Json]:
    """Returns the script of the engine: a tool call in each tool turn of a scenario, then a text. Each answer has `tokens` tokens."""
    asking = [
        {
            "match": {"contains": f"has {turns} wishes", "turn": turn},
            "tool_calls": [{"name": f"desk_tool_{turn:02}", "arguments": arguments(tokens - 1)}],  # the name is a token too
        }
        for turns in range(1, MOST_TURNS + 1)
        for turn in range(turns)
    ]
    return [*asking, {"text": words(tokens)}]


def arguments(tokens: int) -> str:
    for length in range(1, tokens):
        text = json.dumps({"account": words(length)}, separators=(",", ":"))
        if len(tokenise(text)) == tokens:
            return text
    raise BenchmarkError(f"no JSON object has exactly {tokens} tokens; use another number")


def words(count: int) -> str:
    return " ".join(["done"] * count)
