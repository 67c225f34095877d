"""The report of a study: its result, the settings as YAML and as a command, and its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import RuleVerdict
from pytest_agentbench.optimize.confirmation import CONFIRMED, Confirmation
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.optimize.ranking import RankingEvidence, RankingTerms
from pytest_agentbench.optimize.search import RankedTrial
from pytest_agentbench.records import SHARE
from pytest_agentbench.reports.optimize import StudyReport, as_json, write
from pytest_agentbench.reports.optimize_phrases import as_yaml, command, looked_at, verdict
from pytest_agentbench.runs.results import MetricCompared
from pytest_agentbench.stats.decisions import PASS, Decision, MissingScenarios

SETTINGS = {"agent.max_turns": 4, "backend.router.mode": "kv", "backend.router.weight": 0.5, "concurrency": 8}
PLAN = StudyPlan((("a",), ("b",), ("c",)), ("d", "e"), settings=3, confirmation_trials=2, concurrency=4, seed=0)


def trial(number: int, ratio: float, state: str = "complete") -> RankedTrial:
    evidence = RankingEvidence({"rollout.p50": ratio}, {"rollout.p50": 0.02}, 0.01, 0.005, 3)
    return RankedTrial(number, {**SETTINGS, "agent.max_turns": number}, state, (ratio,) if state == "complete" else (), evidence, "")


def confirmation() -> Confirmation:
    decided = Decision(PASS, 1.0, 0.95, 2, (40, 40), MissingScenarios(), estimate=0.9, low=0.85, high=0.95)
    speed = MetricCompared(
        **vars(decided), suite="shop", metric="rollout.p50", base_arm="base", new_arm="new", base=100.0, new=90.0, finding="faster"
    )
    rule = parse_rule("tsq.mean >= -0.05 vs baseline", ["tsq"])
    quality = replace(decided, threshold=-0.05, estimate=0.0, low=-0.02, high=0.02)
    return Confirmation(speed, RuleVerdict(SuiteRule("shop", rule, SHARE), quality))


def report() -> StudyReport:
    trials = (trial(0, 0.1), trial(1, -0.1), trial(2, 0.3, "pruned"))
    terms = RankingTerms(("rollout.p50",), "tsq", SHARE)
    return StudyReport("shop", terms, PLAN, trials, (trials[1],), trials[1], confirmation(), {"agent.max_turns": 1.0}, (), "scenarios/shop")


def test_settings_as_yaml() -> None:
    """Settings are YAML for the files that they belong in, with nested keys, and a command with the same meaning."""
    text = as_yaml(SETTINGS)

    assert {"agent": {"max_turns": 4}, "router": {"mode": "kv", "weight": 0.5}} == yaml.safe_load(text)
    assert "# --agentbench-concurrency=8" in text
    assert {"--agentbench-set=backend.router.mode=kv", "--agentbench-concurrency=8"} <= {*command("scenarios/shop", SETTINGS).split()}


def test_the_words() -> None:
    """The verdict has both intervals, and the number of settings stands beside what selection alone would have gained."""
    assert "better: rollout.p50 x0.900 [0.850, 0.950], tsq.mean +0.000 [-0.020, +0.020] (PASS with a margin of 0.05)" == verdict(
        confirmation()
    )
    assert looked_at(report().trials).startswith("3 settings: 2 complete, 1 pruned, 0 not measured; if all were equal")
    assert "1.2 % faster by chance alone" in looked_at(report().trials)


def test_files(tmp_path: Path) -> None:
    """The page begins with the verdict, and the JSON has the numbers, also without a confirmation."""
    files = write(report(), tmp_path)

    assert ["optimize.json", "optimize.md"] == [file.name for file in files]
    page = (tmp_path / "optimize.md").read_text(encoding="utf-8")
    assert page.index("better: rollout.p50") < page.index("Ranking of the search (no claim)") < page.index("Importance of settings")
    found = json.loads((tmp_path / "optimize.json").read_text(encoding="utf-8"))
    assert (CONFIRMED, trial(1, 0).settings, ["d", "e"]) == (found["verdict"], found["settings"], found["held_out"])
    nothing = as_json(replace(report(), best=None, confirmation=None))
    assert (None, None, None) == (nothing["verdict"], nothing["settings"], nothing["speed"])


def test_several_objectives_have_a_picture(tmp_path: Path) -> None:
    """With two objectives the Pareto set is a table and a picture."""
    trials = tuple(replace(trial(number, ratio), values=(ratio, -ratio)) for number, ratio in ((0, 0.1), (1, -0.1)))
    several = replace(report(), terms=replace(report().terms, objectives=("rollout.p50", "quality")), trials=trials, front=trials)

    files = write(several, tmp_path)

    assert ["optimize.json", "optimize.md", "pareto.png"] == [file.name for file in files]
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "optimize.md").read_text(encoding="utf-8")
    assert "## Pareto set" in page
    assert "(pareto.png)" in page
