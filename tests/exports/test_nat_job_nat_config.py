"""The original and the effective configuration of a job, and the overrides between them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from pytest_agentbench.records import Json
from pytest_agentbench.runs.options import RunOptions
from tests.exports.test_nat_export import exported
from tests.made_runs import run_directory, run_of
from tests.tables.shop import BOUGHT


def test_given_and_effective(tmp_path: Path) -> None:
    """Both configurations are readable YAML. Changes of the run are in the effective one, and listed as overrides."""
    agent = {"kind": "react", "temperature": 0.2, "max_turns": 5}
    suites = {"shop": replace(run_of(BOUGHT).suites["shop"], agent=agent)}
    settings = RunOptions(backend="embedded", concurrency=4, changes={"agent.temperature": 0.2, "backend.ttft_ms": 5})
    job = exported(tmp_path / "out", run_directory(tmp_path / "run", BOUGHT, suites=suites, settings=settings))
    [folder] = job.glob("dynamo_evals/*/jobs/*")
    texts = {name: (folder / f"config_{name}.yml").read_text(encoding="utf-8") for name in ("original", "effective")}
    given, effective = (yaml.safe_load(text) for text in texts.values())

    assert texts["effective"].startswith("llms:\n  llm:\n    _type: embedded\n    model_name: m\n")
    assert {"_type": "react", "llm_name": "llm", "temperature": 0.2, "max_turns": 5} == effective["workflow"]
    assert {"_type": "react", "llm_name": "llm", "max_turns": 5} == given["workflow"]
    assert 4 == effective["eval"]["general"]["max_concurrency"] == given["eval"]["general"]["max_concurrency"]
    metadata: Json = json.loads((folder / "config_metadata.json").read_text(encoding="utf-8"))
    assert [{"path": "workflow.temperature", "value": 0.2}] == metadata["overrides"]
