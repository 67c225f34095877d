"""Scorers are found by name."""

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
    """An import path and a file of the suite are scorers too."""
    (tmp_path / "mine.py").write_text("def politeness(scenario, rollout): ...\n")

    assert load_scorer("tsq") is load_scorer("pytest_agentbench.scorers.tsq:tsq")
    assert "politeness" == load_scorer("./mine.py:politeness", tmp_path).__name__


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tqs", f"no scorer 'tqs'; known: {', '.join(sorted(SCORERS))}, or an import path such as"),
        ("pytest_agentbench.scorers.tsq:nothing", "scorer 'pytest_agentbench.scorers.tsq:nothing' cannot be loaded"),
        ("pytest_agentbench.scorers:SCORERS", "scorer 'pytest_agentbench.scorers:SCORERS' is a dict, should be a function"),
    ],
)
def test_a_wrong_name_is_a_sentence(name: str, message: str) -> None:
    """An unknown name lists the known ones; a path that leads to no function says what is there."""
    with pytest.raises(ConfigError) as caught:
        load_scorer(name)

    assert str(caught.value).startswith(message)
