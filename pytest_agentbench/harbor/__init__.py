"""What the package `harbor` uses of ours, by import path: `-a pytest_agentbench.harbor:Agent`, `-e pytest_agentbench.harbor:Environment`.

docs/harbor.md says how.
"""

from __future__ import annotations

from pytest_agentbench.sandbox.harbor_factory import check_harbor

check_harbor("pytest_agentbench.harbor")

from pytest_agentbench.harbor.agent import Agent  # noqa: E402 - which imports Harbor
from pytest_agentbench.harbor.environment import Environment  # noqa: E402 - so does it

__all__ = ["Agent", "Environment"]
