"""Costs and tokens of a score, from the prices in a backend.yaml to all reports, in real sessions."""

from __future__ import annotations

import shutil

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.metrics import registry
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Level
from pytest_agentbench.reports.phrases import significant
from tests.findings import report_of, said, under
from tests.project import Project

PRICES = {"currency": "USD", "input": 2.0, "cached_input": 1.0, "output": 10.0}

#: These rules are about tokens, whose number does not depend on the load of the machine.
RULES = tuple(
    f"--agentbench-gate={rule}" for rule in ("cost_per_pass <= 0.5", "score_per_1k_tokens >= 0.001", "prefix_cache_hit_ratio >= 0")
)


def test_costs(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Costs are computed from the tokens in `usage`. They are in run.json, report.md, the gate, OpenMetrics and `compare`."""
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.chdir(project.root)
    project.backend(prices=PRICES)
    project.suite(scenarios=3)

    project.run(*RULES, "scenarios/shop")

    run, calls = project.run_json, [call for rollout in project.rollouts for call in rollout.calls]
    prompt, output, cached = (
        sum(getattr(call, name) for call in calls) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    )
    cost = ((prompt - cached) * 2 + cached + output * 10) / 1e6
    efficiency = run["suites"]["shop"]["efficiency"]
    assert ("USD", *(pytest.approx(each) for each in (cost, cost / 3, cost / 3, (prompt + output) / 3))) == tuple(
        efficiency[name] for name in ("currency", "cost", "cost_per_rollout", "cost_per_pass", "tokens_per_rollout")
    )
    assert {"USD": efficiency["cost"]} == run["costs"]
    assert pytest.approx(1000 / efficiency["tokens_per_rollout"]) == efficiency["score_per_1k_tokens"]
    assert ["PASS"] * 3 == [rule["verdict"] for rule in run["gate"]["rules"] if rule["kind"] == "rate"]
    report = report_of(project.directory, Level.FULL)
    [(told,)] = said(report, suite_phrases.efficiency)
    words = suite_phrases.efficiency(told)
    assert [] == [
        metric for metric in registry.efficiency().values() if f"{metric.title} {significant(efficiency[metric.name])}" not in words
    ]
    assert [({"USD": efficiency["cost"]},)] == under(report, "cost")
    assert 'agentbench_cost_per_pass{suite="shop"}' in (project.directory / "metrics.txt").read_text()
    shutil.copytree(project.directory.resolve(), project.root / "reports" / "again")
    assert 0 == main(["compare", "latest", "again"])
    (costs,) = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("cost/pass ")]
    assert costs[0] == costs[1]


@pytest.mark.slow
def test_prices_change_no_rollout(project: Project) -> None:
    """A run can be resumed with other prices: nothing runs again, and all costs use the new prices.

    Without prices, no costs are reported.
    """
    project.suite(scenarios=2)
    project.run("scenarios/shop")
    assert ({}, None) == (project.run_json["costs"], project.run_json["suites"]["shop"]["efficiency"]["cost"])
    assert [] == under(report_of(project.directory), "cost")

    project.backend(prices=PRICES)
    result = project.run("--agentbench-resume", "scenarios/shop")

    assert 0 == result.ret
    assert [2, 0] == [each["rollouts"] for each in project.run_json["sessions"]]
    assert project.run_json["costs"]["USD"] > 0
