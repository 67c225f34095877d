"""Files and rules of a session are read once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytest_agentbench.agents import factory
from pytest_agentbench.gate import rules
from pytest_agentbench.lib import config as yaml_files
from pytest_agentbench.rollouts import compile as compilation
from pytest_agentbench.session import gate
from pytest_agentbench.session.settings import read_settings
from pytest_agentbench.session.setup import find_suites
from tests.project import Project


def test_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """During setup each suite.yaml and each rule is parsed once, and each agent is made once."""
    file = project.suite(scenarios=2, gate=["tsq.mean >= 0.1", "infra_error.rate <= 50%"])
    counts: Counter[object] = Counter()

    def counted(module: Any, name: str, key: int) -> None:
        original = getattr(module, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            counts[arguments[key] if key >= 0 else name] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(module, name, call)

    counted(yaml_files, "parse_yaml", 1)
    for module in (compilation, gate, rules):
        counted(module, "parse_rule", 0)
    for module in (compilation, factory):
        counted(module, "make_agent", -1)
    pytest_config = project.pytester.parseconfig("scenarios/shop")
    settings = read_settings(pytest_config)

    found = find_suites(pytest_config, settings)
    assert {} == found.unavailable
    made = gate.make_gate(found.compiled, settings)

    assert made is not None
    assert {"shop"} == {each.group for each in made.rules}
    once = (str(file), "tsq.mean >= 0.1", "infra_error.rate <= 50%", "make_agent")
    assert dict.fromkeys(once, 1) == {key: counts[key] for key in once}
