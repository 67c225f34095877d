"""Loading scorers by name, import path or file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.scorers import SCORERS, load_scorer


@pytest.mark.parametrize("name", SCORERS)
def test_every_built_in_scorer_loads(name: str) -> None:
    """Each name in SCORERS leads to the function of that name."""
    assert name == load_scorer(name).__name__


def test_import_paths_and_files(tmp_path: Path) -> None:
    """Import paths and files of the suite lead to scorers, too."""
    (tmp_path / "mine.py").write_text("def politeness(scenario, rollout): ...\n")

    assert load_scorer("tsq") is load_scorer("pytest_agentbench.scorers.tsq:tsq")
    assert "politeness" == load_scorer("./mine.py:politeness", tmp_path).__name__


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tqs", f"no scorer 'tqs' (did you mean 'tsq'?); known: {', '.join(sorted(SCORERS))}, or an import path such as"),
        ("pytest_agentbench.scorers.tsq:nothing", "scorer 'pytest_agentbench.scorers.tsq:nothing' cannot be loaded"),
        ("pytest_agentbench.scorers:SCORERS", "scorer 'pytest_agentbench.scorers:SCORERS' is a dict, must be a function"),
        ("math:sqrt", "scorer 'math:sqrt' should take (scenario, rollout), not (x, /): too many positional arguments"),
    ],
)
def test_a_wrong_name_is_a_sentence(name: str, message: str) -> None:
    """The error of an unknown name lists the known ones. The error of a path without a function says what the path leads to."""
    with pytest.raises(ConfigError) as caught:
        load_scorer(name)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("rollout", "should take (scenario, rollout), not (rollout): too many positional arguments"),
        ("rollout, scenario", "should take (scenario, rollout) in this order, not (rollout, scenario)"),
        ("scenario, rollout, more", "should take (scenario, rollout), not (scenario, rollout, more): missing a required argument: 'more'"),
        ("scenario, rollout, *, judge=None", "should take (scenario, rollout, judge), not (scenario, rollout, *, judge=None): too many"),
        ("scenario, rollout, *, pattern", "the option 'pattern' is missing"),
    ],
)
def test_a_function_that_is_not_a_scorer(tmp_path: Path, code: str, fault: str) -> None:
    """A function that does not take a scenario and a rollout, and a judge as the third argument, is refused before it is called."""
    (tmp_path / "mine.py").write_text(f"def good({code}): return 1.0\n")

    with pytest.raises(ConfigError) as caught:
        load_scorer("./mine.py:good", tmp_path)

    assert fault in str(caught.value)


def test_the_parameters_of_a_scorer(tmp_path: Path) -> None:
    """Parameter names are free, further parameters may have defaults, and a judge is the third."""
    (tmp_path / "free.py").write_text(
        "def a(task, run): ...\ndef b(scenario, rollout, judge): ...\ndef c(*all): ...\nd = lambda s, r, k=2: 1.0\n"
    )

    for name in "abcd":
        assert callable(load_scorer(f"./free.py:{name}", tmp_path))
