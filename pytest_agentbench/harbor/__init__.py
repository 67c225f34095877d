"""An agent and an environment for Harbor, a harness for terminal tasks (the package `harbor`), which imports both by path.

Use `harbor run -a pytest_agentbench.harbor:Agent` and `harbor run -e pytest_agentbench.harbor:Environment`; see docs/terminal/harbor.md.
"""

from __future__ import annotations

from pytest_agentbench.sandbox.harbor_sandbox import check_harbor

check_harbor("pytest_agentbench.harbor")

from pytest_agentbench.harbor.agent import Agent  # noqa: E402 - imports Harbor
from pytest_agentbench.harbor.environment import Environment  # noqa: E402 - imports Harbor

__all__ = ["Agent", "Environment"]
