"""The versions that a session and its node workers share."""

from __future__ import annotations

import sys
from dataclasses import replace

from pytest_agentbench.rollouts.nodes.connection import join_problem, versions
from pytest_agentbench.rollouts.nodes.protocol import Join

PACKAGE, PYTHON = versions()
JOIN = Join("n", "i", 1, 4, 2, 0, PACKAGE, PYTHON)


def test_versions() -> None:
    """The version of Python has no patch number."""
    assert f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON
    assert 16 == len(PACKAGE)


def test_join_problem() -> None:
    """Each difference is named with both values; without one there is no problem."""
    assert "" == join_problem(JOIN)
    assert f"it has package {'0' * 16} on Python {PYTHON}, and the session has package {PACKAGE} on Python {PYTHON}; " in join_problem(
        replace(JOIN, package="0" * 16)
    )
    assert f"on Python 3.1, and the session has package {PACKAGE} on Python {PYTHON}" in join_problem(replace(JOIN, python="3.1"))
    assert "it has 0 slots" == join_problem(replace(JOIN, slots=0))
