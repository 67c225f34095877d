"""The search over settings becomes a space.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.exports.nat_config.convert import SPACE_FILE, ConvertedConfig, convert, write
from pytest_agentbench.exports.nat_config.data import NatInputs
from pytest_agentbench.optimize.space import read_space
from tests.nat_configs import CONFIGS, ROOT, converted

LLM = "llms.dynamo_llm"


def test_the_whole_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges and words become settings of the backend, metrics become objectives, and the grid has the same size. The rest is named."""
    result = converted("optimize_rethinking_full_test")
    monkeypatch.chdir(ROOT)
    write(result, tmp_path / "made")
    space = read_space(tmp_path / "made" / SPACE_FILE)
    labels = "backend.labels"

    assert [f"{labels}.total_requests", f"{labels}.osl", f"{labels}.iat"] == [*space.parameters]
    assert [[1, 20, 5], [128, 512, 2048], [50, 250, 750]] == [
        each.values or [each.low, each.high, each.step] for each in space.parameters.values()
    ]
    assert (36, ["e2e.p50", "rollout.p50"]) == (space.size, space.objectives)
    assert result.search_command(Path("made")).endswith("--backend=made/backend.yaml --trials=36 --concurrency=36")
    named = {path for path, _ in result.left_out if path.startswith(("optimizer", LLM))}
    metrics = "optimizer.eval_metrics"
    assert {
        f"{LLM}.api_key",
        "optimizer.output_path",
        "optimizer.reps_per_param_set",
        "optimizer.prompt.enabled",
        *(f"{metrics}.{each}.weight" for each in ("llm_latency", "workflow_runtime", "num_calls")),
        *(f"{metrics}.num_calls.{each}" for each in ("evaluator_name", "direction")),
    } == named


def with_search(file: Path, llm: Any, optimizer: Any, evaluators: Any = None) -> ConvertedConfig:
    keys = yaml.safe_load((CONFIGS / "openai.yml").read_text(encoding="utf-8"))
    keys["llms"]["agent_llm"] |= llm
    keys["optimizer"] = optimizer
    keys["eval"]["evaluators"] |= evaluators or {}
    file.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return convert(file, NatInputs())


def test_only_settings_with_values_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key without values of its own, and a hint of an LLM without hints, are named. Quality alone comes after a latency."""
    monkeypatch.chdir(ROOT)
    llm = {
        "optimizable_params": ["temperature", "top_p", "nvext_prefix_osl"],
        "search_space": {"temperature": {"low": 0, "high": 1, "step": 0.5}, "nvext_prefix_osl": {"values": ["LOW"]}},
    }
    metrics = {"good": {"evaluator_name": "good", "direction": "maximize"}}
    evaluators = {"good": {"_type": "tsq_evaluator"}}
    optimizer = {"numeric": {"n_trials": 7}, "eval_metrics": metrics}

    result = with_search(tmp_path / "a.yml", llm, optimizer, evaluators)
    space = yaml.safe_load(result.files[SPACE_FILE])

    assert {"agent.temperature": {"low": 0.0, "high": 1.0, "step": 0.5}} == space["parameters"]
    assert result.search_command(Path("made")).startswith("agentbench optimize made --space=made/space.yaml")
    assert "--trials=7" in result.search_command(Path("made"))
    named = {path for path, _ in result.left_out if path.startswith("llms.agent_llm")}
    assert {"llms.agent_llm.optimizable_params", "llms.agent_llm.search_space.nvext_prefix_osl.values"} <= named
    assert "llms.agent_llm.search_space.temperature.low" not in named
    assert ["rollout.p50", "quality"] == space["objectives"]


@pytest.mark.parametrize("optimizer", [{"numeric": {"enabled": False}}, {"prompt": {"enabled": True}, "numeric": {"enabled": False}}])
def test_no_search_of_numbers(optimizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of prompts only has no space.yaml, and all its keys are named."""
    monkeypatch.chdir(ROOT)
    llm = {"optimizable_params": ["temperature"], "search_space": {"temperature": {"values": [0, 1]}}}

    result = with_search(tmp_path / "a.yml", llm, optimizer)

    assert (True, "") == (SPACE_FILE not in result.files, result.search_command(Path("made")))
    assert {"llms.agent_llm.search_space.temperature.values", "optimizer.numeric.enabled"} <= {path for path, _ in result.left_out}
