"""Each shipped suite has a rule, so that its runs get a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.gate.rules import mean_rules, parse_rule
from pytest_agentbench.lib.config import load_yaml
from tests.project import ROOT

SUITES = sorted((ROOT / "scenarios").glob("*/suite.yaml"))


@pytest.mark.parametrize("file", SUITES, ids=lambda file: file.parent.name)
def test_a_shipped_suite_has_a_rule(file: Path) -> None:
    """Each suite.yaml has a rule about the whole run, as `gate` or as the threshold of a mean."""
    suite = load_yaml(file)

    gate = [parse_rule(text, [*suite["scorers"]], passes=True) for text in suite.get("gate", ())]
    assert [*gate, *mean_rules(suite.get("thresholds", {}))]
