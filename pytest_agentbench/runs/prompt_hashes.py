"""Hashes of what agents tell a model besides the scenario."""

from __future__ import annotations

from pytest_agentbench.agents.factory import brings_code, make_agent, prompts_of
from pytest_agentbench.records import Json
from pytest_agentbench.suites.hashes import digest
from pytest_agentbench.suites.suite import PoolSuite


def prompt_hashes(suite: PoolSuite, variant: str) -> Json | None:
    """Option -> hash of each text that the agent tells a model besides the scenario; None of an agent that is the suite's own code."""
    settings = suite.agent_of(variant)
    if brings_code(settings, suite.folder):  # it is imported in the pool only; the hash of its file is among the settings
        return None
    return {name: digest(text) for name, text in prompts_of(make_agent(settings, suite.folder)).items()}
