"""Writes the project of the benchmark: the suite `sessions`, and backends of one router with static hints, learnt ones, and none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pytest_agentbench.tap.hint_table import SCHEMA

ROOT = Path(__file__).parents[2]

WORKERS = 2
PROFILE = "vllm-router-reference"  # speed of the mockers
TABLE = "hints.json"  # the learnt hints, beside the backends

#: Hints that the client of the NeMo Agent Toolkit sends by default.
STATIC = {"total_requests": 10, "osl": 512, "iat": 250}

#: Arm -> what its `labels` have besides those of the shipped backend. The others are compared with the first.
ARMS: Mapping[str, Mapping[str, object]] = {"static": STATIC, "learnt": {"table": TABLE}, "none": {}}
BASE, *OTHERS = ARMS

Stack = dict[str, Any]  # a backend's YAML


def make(folder: Path, router: str) -> None:
    """Writes the project to an empty folder. The backends are named as the arms. The table of hints is empty until one is learnt."""
    backends = folder / "backends"
    for part in ("backends", "scenarios/sessions"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\nasyncio_default_fixture_loop_scope = function\n")
    (backends / TABLE).write_text(json.dumps({"schema": SCHEMA, "run": "", "rows": []}))
    for arm, labels in ARMS.items():
        made = ROUTERS[router](backends)
        made["labels"] |= labels
        (backends / f"{arm}.yaml").write_text(json.dumps(made))


def _dynamo(backends: Path) -> Stack:
    made = _shipped(backends, "dynamo-mocker")
    made["settings"] |= {"policy": "kv-queue", "profile": PROFILE, "speedup": 1}
    made["services"]["worker"]["replicas"] = made["ready"]["workers"]["aggregated"] = WORKERS
    made["services"]["frontend"]["env"]["DYN_ROUTER_TRACK_OUTPUT_BLOCKS"] = "true"  # Otherwise the router makes no use of `osl`.
    return made


def _thompson(backends: Path) -> Stack:
    made = _shipped(backends, "thompson-mocker")
    made["settings"]["profile"] = PROFILE
    engines = _shipped(backends, "engines/mocker")
    engines["services"]["engine"]["replicas"] = WORKERS
    (backends / "engines" / "mocker.yaml").write_text(json.dumps(engines))
    return made


#: Router -> the backend with it, made from a shipped YAML.
ROUTERS = {"dynamo": _dynamo, "thompson": _thompson}


def _shipped(backends: Path, name: str) -> Stack:
    made: Stack = yaml.safe_load((backends / f"{name}.yaml").read_text(encoding="utf-8"))
    return made
