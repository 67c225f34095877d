"""The decorator `@scorer` declares whether higher or lower scores are better, and their range."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench import scorer
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.threads import off_the_loop
from pytest_agentbench.lib.user_code import with_options
from pytest_agentbench.records import UNDECLARED, Rollout, Scale, Score
from pytest_agentbench.rollouts.compile import checked
from pytest_agentbench.rollouts.scores import no_judge, scored
from pytest_agentbench.scorers import SCORERS, load_scorer
from pytest_agentbench.scorers.declaration import scale_of
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from tests.project import ROOT

SCENARIO = Scenario("s", ())
ROLLOUT = Rollout("shop", "s", "default", 1, "ok")
MISTAKES = Scale("lower", 0.0, None, "mistakes", declared=True)

declared = scorer(better="lower", range=(0, math.inf), unit="mistakes")


@declared
def mistakes(scenario: Any, rollout: Any, *, most: float = 10) -> float:
    return 12.0


@declared
async def later(scenario: Any, rollout: Any) -> float:
    return 12.0


def plain(scenario: Any, rollout: Any) -> float:
    return 1.0


@declared
class Counted:
    def __call__(self, scenario: Any, rollout: Any) -> float:  # noqa: ARG002 - the signature of a scorer
        return 12.0


class Inside:
    @declared
    def __call__(self, scenario: Any, rollout: Any) -> float:  # noqa: ARG002 - the signature of a scorer
        return 12.0


@pytest.mark.parametrize(
    "function",
    [mistakes, later, Counted(), Inside(), with_options("scorer", "mistakes", mistakes, {"most": 5}), off_the_loop(mistakes)],
    ids=["function", "coroutine", "object", "method", "options", "thread"],
)
def test_kinds_of_declared_scorers(function: Any) -> None:
    """A function, a coroutine function and a callable object keep their declaration, with bound options and in a thread."""
    assert MISTAKES == scale_of(function)
    assert 12.0 == mistakes(SCENARIO, ROLLOUT)


def test_nothing_declared() -> None:
    """A scorer without the decorator is undeclared: higher is better, and the range is unknown."""
    assert UNDECLARED == scale_of(plain)
    assert UNDECLARED == scale_of(functools.partial(plain))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"better": "less"}, 'better=\'less\' is unknown; use better="higher" or better="lower"'),
        ({"range": (1, 1)}, "range=(1, 1) must be two numbers, the least score before the greatest one"),
        ({"range": (1, 0)}, "range=(1, 0) must be two numbers"),
        ({"range": (0, math.nan)}, "range=(0, nan) must be two numbers"),
        ({"range": 3}, "range=3 must be two numbers"),
        ({"range": (0, 1), "threshold": 2}, "threshold=2 must be in the range of the scores, which are between 0 and 1"),
        ({"unit": "a\nb"}, "must be a noun on one line"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], sentence: str) -> None:
    """Wrong arguments are refused when the scorer is defined, in a sentence that names the argument."""
    with pytest.raises(ValueError, match=re.escape(sentence)):
        scorer(**arguments)


def test_a_range_that_depends_on_options(tmp_path: Path) -> None:
    """A range may be a function of the options. Options that make it invalid are an error of the suite."""
    assert (0.0, 1.4) == scale_of(load_scorer("nat_compat", options={"parameter_weight": 0.4})).limits
    assert (0.0, 1.0) == scale_of(load_scorer("nat_compat")).limits
    (tmp_path / "own.py").write_text(
        "from pytest_agentbench import scorer\n@scorer(range=lambda most: (0, most))\ndef counted(scenario, rollout, *, most=3): return 1\n"
    )
    data = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 0)
    suite = Suite("shop", tmp_path, (), dataset=data, scorers={"./own.py:counted": {"most": -1}})

    with pytest.raises(
        ConfigError, match=r"scorer 'counted': its range cannot be computed; correct its options or its @scorer: .*range=\(0, -1\)"
    ):
        checked(suite)


def test_a_score_outside_the_range() -> None:
    """A score outside the range is an error of the scorer, and is not clipped to the range."""

    @scorer(range=(0, 10))
    def marks(scenario: Any, rollout: Any) -> Score:
        return Score(12.0)

    both: dict[str, Any] = {"marks": marks, "mistakes": mistakes}
    result = asyncio.run(scored(ROLLOUT, SCENARIO, both, no_judge))

    assert {"mistakes": 12.0} == result.scores
    fault = "ValueError: the score 12 is outside the range that its scorer declares (between 0 and 10)"
    assert {"marks": f"{fault} (test_declaration.py:{inspect.unwrap(marks).__code__.co_firstlineno})"} == result.score_errors


def test_every_built_in_scorer_declares_its_range() -> None:
    """All built-in scorers declare a range, and those that count faults declare that lower is better."""
    scales = {name: scale_of(load_scorer(name)) for name in SCORERS}

    assert [] == [name for name, scale in scales.items() if not scale.declared]
    assert ["hallucinated", "repeated"] == [name for name, scale in scales.items() if scale.falling]
    assert {"reward": 1.0} == {name: scale.threshold for name, scale in scales.items() if scale.threshold is not None}


def test_no_list_of_names_is_left() -> None:
    """No module except the scorers' own names a score that counts faults, because scorers declare that themselves."""
    package = ROOT / "pytest_agentbench"
    sources = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    naming = re.compile(r"LOWER_IS_BETTER|\bFLOORS\b|[\"']hallucinated[\"']|[\"']repeated[\"']")

    assert [Path("scorers/__init__.py")] == [path for path, text in sources.items() if naming.search(text)]
