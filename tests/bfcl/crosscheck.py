"""Our scorer of arguments beside the leaderboard's own checker: `python -m tests.bfcl.crosscheck --table docs/bfcl-crosscheck.md`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.agents.toolbox import Toolbox
from pytest_agentbench.datasets import bfcl
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scenarios import Scenario
from pytest_agentbench.scorers.tsq_arguments import tsq_arguments
from tests.bfcl.answers import Answer, answers

PER_CATEGORY = 24


class Compared(NamedTuple):
    """What both say of an answer."""

    answer: Answer
    ours: Score
    theirs: bool | None  # None: their checker raised
    why: str  # theirs

    @property
    def agree(self) -> bool:
        return (self.ours == 1.0) is self.theirs


def compared(per_category: int = PER_CATEGORY) -> list[Compared]:
    scenarios = {scenario.id: scenario for scenario in bfcl.load().scenarios}
    asked = [*answers(per_category)]
    return [
        Compared(answer, ours(scenarios[answer.id], answer), said["valid"], said["why"])
        for answer, said in zip(asked, theirs(asked), strict=True)
    ]


def ours(scenario: Scenario, answer: Answer) -> Score:
    """Our score of the calls, made as a model makes them: by the names of the wire, with JSON text."""
    tools = Toolbox(scenario.tools)
    wire = dict(zip(tools.tools, (schema["function"]["name"] for schema in tools.schemas), strict=True))
    for call in answer.calls:
        for name, arguments in call.items():
            tools.call(wire.get(name, name), json.dumps(arguments), 1)
    return tsq_arguments(scenario, Rollout("bfcl", scenario.id, "default", 1, "ok", tool_calls=tuple(tools.calls)))


def theirs(asked: list[Answer]) -> Iterator[dict[str, bool | str | None]]:
    lines = "".join(json.dumps(vars(answer)) + "\n" for answer in asked)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("checker.py"))], input=lines, capture_output=True, text=True, check=True, timeout=120
    )
    return map(json.loads, done.stdout.splitlines())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path)
    parser.parse_args()
    every = compared()
    bad = [each for each in every if not each.agree]
    print(len(every), len(bad), sum(each.theirs is True for each in every))
    for each in bad:
        print(each.answer.about(), "| ours", float(each.ours), each.ours.explanation[-150:], "| theirs", each.theirs, each.why[:160], "|")
