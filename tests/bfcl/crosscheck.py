"""Compares our score of arguments with the package's checker: `python -m tests.bfcl.crosscheck --table benchmarks/bfcl-crosscheck.md`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.scorers.tsq import tsq_arguments
from pytest_agentbench.suites.datasets import bfcl
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox
from tests.bfcl.answers import Answer, Made, answers

PER_CATEGORY = 10


class Compared(NamedTuple):
    """An answer with both verdicts."""

    answer: Answer
    ours: Score
    theirs: bool | None  # None: their checker raised

    @property
    def agree(self) -> bool:
        return self.right is self.theirs

    @property
    def right(self) -> bool:
        """Whether our score accepts the answer: every expected call was made, and no other."""
        return self.ours == 1.0


class Cause(NamedTuple):
    """A reason why both verdicts differ."""

    applies: Callable[[Made], bool]
    who: str  # the right verdict: ours | theirs
    why: str


def words(value: Any) -> list[str]:
    """Returns the words of a text, without separators."""
    return re.split(r"[\s,.]+", str(value).strip(" ,."))


CAUSES: Mapping[str, Cause] = {
    "a number as text": Cause(
        lambda made: made.kind == "number as text",
        "theirs",
        "the schema wants a number. `tsq_arguments` asks whether the value is the right one; that it is of the wrong type is said by "
        "`schema_valid`, and the model is told so",
    ),
    "a whole number with a point": Cause(
        lambda made: made.kind == "whole number with a point", "ours", "10.0 is an integer in JSON Schema, and the same number as 10"
    ),
    "a date in words": Cause(
        lambda made: made.kind == "date in words", "ours", "it is the same day, and the schema says that the argument is a date"
    ),
    "a default spelt out": Cause(
        lambda made: made.kind == "default spelt out", "ours", "an argument that has its default changes nothing in what is done"
    ),
    "commas, full stops and spaces between words": Cause(
        lambda made: made.kind in ("no punctuation", "no spaces") and words(made.before) == words(made.after),
        "theirs",
        "`Paris France` says what `Paris, France` says. We compare texts without case and with one space for several, not more",
    ),
    "signs that mean something": Cause(
        lambda made: made.kind in ("no punctuation", "no spaces"),
        "ours",
        "without its spaces, points, dashes, slashes and stars a formula, a unit, a name, a path or a number of a document is "
        "another one: `2x2` is not `2x**2`. They leave all of these out before they compare",
    ),
}


def compared(per_category: int = PER_CATEGORY) -> list[Compared]:
    scenarios = {scenario.id: scenario for scenario in bfcl.load().scenarios}
    asked = [*answers(per_category)]
    verdicts = zip(asked, theirs(asked), strict=True)
    return [Compared(answer, ours(scenarios[answer.id], answer.made.calls), verdict["valid"]) for answer, verdict in verdicts]


def ours(scenario: Scenario, calls: Sequence[Json]) -> Score:
    """Returns our score of calls that are made as by a model: with the names in its request and arguments as JSON text."""
    tools = Toolbox(scenario.tools)
    wire = dict(zip(tools.tools, (schema["function"]["name"] for schema in tools.schemas), strict=True))
    for call in calls:
        for name, arguments in call.items():
            tools.record(wire.get(name, name), json.dumps(arguments), 1)
    return tsq_arguments(scenario, Rollout("bfcl", scenario.id, "default", 1, "ok", tool_calls=tuple(tools.calls)))


def theirs(asked: Sequence[Answer]) -> Iterator[Json]:
    lines = "".join(
        json.dumps({"docs": each.docs, "calls": each.made.calls, "truth": each.truth, "category": each.category}) + "\n" for each in asked
    )
    command = [sys.executable, str(Path(__file__).with_name("checker.py"))]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
    return map(json.loads, done.stdout.splitlines())


def cause(each: Compared) -> str:
    """Returns why both verdicts differ, or an empty text if the cause is unknown."""
    return next((name for name, known in CAUSES.items() if known.applies(each.answer.made)), "")


def page(every: Sequence[Compared]) -> str:
    """Returns the text of benchmarks/bfcl-crosscheck.md."""
    tally = Counter((each.right, each.theirs) for each in every)
    differ = [each for each in every if not each.agree]
    causes = Counter(map(cause, differ))
    kinds = Counter(each.answer.made.kind for each in every)
    return "\n".join(
        [
            "# Our scorer of arguments and the leaderboard's own checker",
            "",
            f"Made by `python -m tests.bfcl.crosscheck --table benchmarks/bfcl-crosscheck.md` with {bfcl.PACKAGE} {bfcl.VERSION};",
            "a test keeps it true.",
            f"{len(every)} answers were made of the possible answers to about {PER_CATEGORY} questions of each category.",
            "Ours is `tsq_arguments`, which is 1 when all calls are right and no other was made; theirs is `ast_checker`.",
            "",
            "| | right for them | wrong for them |",
            "|---|---|---|",
            f"| right for us | {tally[True, True]} | {tally[True, False]} |",
            f"| wrong for us | {tally[False, True]} | {tally[False, False]} |",
            "",
            "Kinds of answers: " + ", ".join(f"{kind} ({count})" for kind, count in kinds.items()) + ".",
            "",
            "## Who is right where they differ",
            "",
            "| what | answers | right | why |",
            "|---|---|---|---|",
            *(f"| {name} | {causes[name]} | {known.who} | {known.why} |" for name, known in CAUSES.items()),
            "",
            "## Every answer on which they differ",
            "",
            "| scenario | expected | answer | ours | theirs | right |",
            "|---|---|---|---|---|---|",
            *map(row, differ),
            "",
        ]
    )


def row(each: Compared) -> str:
    made, known = each.answer.made, CAUSES[cause(each)]
    expected = "left out" if made.before is None else shown(made.before)
    cells = [each.answer.id, expected, shown(made.after), *map(said, (each.right, each.theirs)), known.who]
    return f"| {' | '.join(cells)} |"


def said(right: bool | None) -> str:
    return "right" if right else "wrong"


def shown(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, help="the page to write")
    table: Path = parser.parse_args().table
    table.write_text(page(compared()), encoding="utf-8")


if __name__ == "__main__":
    main()
