"""The configuration of a job of the NeMo Agent Toolkit, as far as a run knows it: as given, and with what was changed for the run."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pytest_agentbench.exports.nat_schema import CONFIG, CONFIG_GIVEN, METADATA
from pytest_agentbench.records import Json
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.suites.arms import OF_AGENT

CONCURRENCY = "eval.general.max_concurrency"


def write_configuration(folder: Path, run: Run, group: str, evaluators: Iterable[str], trials: int) -> None:
    """CONFIG_GIVEN, CONFIG and METADATA of a suite of a run."""
    effective, overrides = _configuration(run, group, evaluators), _overrides(run, group)
    given = copy.deepcopy(effective)
    for path in overrides:
        _leave_out(given, path)
    given["eval"]["general"]["max_concurrency"] = run.settings.concurrency
    for name, configuration in ((CONFIG_GIVEN, given), (CONFIG, effective)):
        text = yaml.safe_dump(json.loads(json.dumps(configuration, default=str)), sort_keys=False, allow_unicode=True)
        (folder / name).write_text(text, encoding="utf-8")
    metadata = json.dumps(_metadata(run, group, overrides, trials), indent=1, ensure_ascii=False, default=str)
    (folder / METADATA).write_text(metadata, encoding="utf-8")


def _configuration(run: Run, group: str, evaluators: Iterable[str]) -> Json:
    suite = run.suites.get(group)
    backend = run.backend.described(suite.variant if suite else "")
    agent = {name: value for name, value in (suite.agent if suite else {}).items() if name != "kind"}
    dataset = {"_type": "json", "file_path": suite.dataset.file if suite else ""}
    return {
        "llms": {"llm": {"_type": backend.get("kind"), "model_name": run.model_of(group)}},
        "workflow": {"_type": suite.agent.get("kind", "unknown") if suite else "unknown", "llm_name": "llm", **agent},
        "eval": {
            "general": {"max_concurrency": run.concurrency_of(group), "dataset": dataset},
            "evaluators": {name: {"_type": name} for name in evaluators},
        },
    }


def _overrides(run: Run, group: str) -> dict[str, Any]:
    """Path in the configuration -> the value that --agentbench-set, or the arm, gave it; of other settings the toolkit has no place."""
    changes, arm = dict(run.settings.changes), run.arm_of(group)
    if arm and arm.path:
        changes[arm.path] = arm.setting
    found = {f"workflow.{path.removeprefix(OF_AGENT)}": value for path, value in changes.items() if path.startswith(OF_AGENT)}
    return found | ({CONCURRENCY: arm.concurrency} if arm and arm.concurrency is not None else {})


def _leave_out(configuration: Json, path: str) -> None:
    """Removes what is at a path, where it is there: what stood there before is not recorded."""
    *above, last = path.split(".")
    inside: Any = configuration
    for name in above:
        inside = inside.get(name) if isinstance(inside, dict) else None
    if isinstance(inside, dict):
        inside.pop(last, None)


def _metadata(run: Run, group: str, overrides: Mapping[str, Any], trials: int) -> Json:
    suite = run.suites.get(group)
    return {
        "config_file": CONFIG_GIVEN,
        "config_file_type": "str",
        "overrides": [{"path": path, "value": value} for path, value in overrides.items()],
        "dataset": suite.dataset.file if suite else None,
        "result_json_path": "$",
        "skip_workflow": False,
        "skip_completed_entries": False,
        "reps": trials,
        "endpoint": None,
        "endpoint_timeout": 300,
        "adjust_dataset_size": False,
        "num_passes": 0,
        "export_timeout": 60.0,
        "user_id": None,
        "timestamp": run.started_at,
    }
