"""The methods of ThunderAgent's paper as arms of one session: the shipped YAMLs and their real routers, before engines without a GPU."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from pytest_agentbench.backends.machine.environments import environments_folder, resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.records import Json
from tests.project import FIND_THEN_ANSWER, Project
from tests.real.booting import ROOT
from tests.robustness.processes import Background
from tests.small_stacks import own_folder

pytestmark = pytest.mark.timeout(500)

#: The first is what the others are compared with.
METHODS = ("vllm-default-router", "vllm-continuum", "thunderagent", "thunderagent-no-decay", "dynamo-thunderagent")

#: What ThunderAgent's router says of itself when it starts: its mode, and whether it lets programs go that are idle.
MODES = {
    "vllm_default_router": ("Router mode: default", False),
    "vllm_continuum": ("Router mode: default", False),
    "thunderagent": ("Router mode: tr", True),
    "thunderagent_no_decay": ("Router mode: tr", False),
}

#: The mocker goes on until it may not.
ENDS = "def test_it(rollout): assert rollout.status in ('ok', 'limit')\n"

ENVIRONMENTS = environments_folder()  # the tests' sessions have another HOME


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_ENVS", str(ENVIRONMENTS))
    try:
        for name in ("thunderagent", "dynamo"):
            resolve_python(name, ROOT)
    except MissingError as error:
        pytest.skip(f"NOT TESTED: {error}")


def shipped(name: str) -> Json:
    said: Json = yaml.safe_load((ROOT / "backends" / f"{name}.yaml").read_text(encoding="utf-8"))
    return said


def write_methods(project: Project) -> None:
    """backends/ of the shipped methods; of each the engine is another, its router, labels and order of start are as shipped."""
    (project.root / "rules.json").write_text(json.dumps([{"ttft_ms": 20, **rule} for rule in FIND_THEN_ANSWER]), encoding="utf-8")
    for name in METHODS[:-1]:
        stack = shipped(name)
        config = {"policy": "script", "script": str(project.root / "rules.json"), "model": "{model}", "kv_blocks": 512}
        asked = json.dumps(config)[:-1] + f', "request_log": "{project.root / name}.jsonl", "port": {{port}}}}'
        run = ["python", "-m", "pytest_agentbench.engine", asked]
        stack["services"]["engine"] = {**_ready(stack["services"]["engine"]), "python": "agentbench", "run": run}
        project.write(f"backends/{name}.yaml", json.dumps({**stack, "warm_up": 1}))
    stack, mocker = shipped(METHODS[-1]), shipped("dynamo-mocker-thunderagent")
    model = project.root / "model"
    make = f"from pathlib import Path; import tiny_tokenizer; tiny_tokenizer.make(Path({str(model)!r}))"
    subprocess.run([resolve_python("dynamo", ROOT), "-c", make], cwd=ROOT / "backends", check=True, timeout=60)
    run = ["python", str(ROOT / "backends" / "dynamo_mocker.py"), str(model), *mocker["services"]["worker"]["run"][3:]]
    stack["services"]["worker"] = {**mocker["services"]["worker"], "run": run, "replicas": 2}
    own: dict[str, Any] = {
        "model": str(model),
        "python": "dynamo",
        "settings": {**mocker["settings"], **stack["settings"], "speedup": 100},
        "env": {**stack["env"], "HF_HUB_OFFLINE": 1, "DYN_LOG": "info"},
        "ready": {"timeout": 120, "tools": "none"},
        "warm_up": 1,
    }
    project.write(f"backends/{METHODS[-1]}.yaml", json.dumps({**stack, **own}))


def _ready(service: Json) -> Json:
    return {name: service[name] for name in ("ready", "metrics")}


def test_five_methods(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session takes all of them in turns: calls pass their arm's router, programs are released, each arm is held against the first."""
    write_methods(project)
    project.suite(scenarios=24, test=ENDS, agent={"kind": "tool_calling", "max_tokens": 20})
    with own_folder(monkeypatch):
        background = Background(project, "scenarios/shop", "-v", f"--agentbench-ab={','.join(METHODS)}", "--agentbench-concurrency=4")
        status = background.ended(400)
    said = json.loads((background.directory / "run.json").read_text(encoding="utf-8"))
    report = (background.directory / "report.md").read_text(encoding="utf-8")
    logs = {arm: (background.directory / "backend" / arm / "router.log").read_text() for arm in (*MODES, "dynamo_thunderagent")}
    modes = {arm: (mode, "Acting token decay: enabled" in logs[arm]) for arm, (mode, _) in MODES.items() if mode in logs[arm]}
    jobs = {line["job_id"] for line in map(json.loads, (project.root / "vllm-continuum.jsonl").read_text().splitlines())}
    compared = {(each["base_arm"], each["new_arm"]) for each in said["ab"]["comparisons"] if each["metric"] == "ttft.p50"}

    assert 0 == status, background.output
    assert "verdict     PASS" in background.output
    assert {"labelled": 120, "announced": 120, "released": 120, "failed": 0, "bypassed": 0, "left": 0} == said["labels"]
    assert [("", 24)] * 5 == [(arm["failure"], arm["rollouts"]["ok"] + arm["rollouts"]["limit"]) for arm in said["ab"]["arms"]]
    assert modes == MODES
    assert 24 == logs["dynamo_thunderagent"].count(f"Released program {background.directory.name}")
    assert 24 == sum(job.startswith(background.directory.name) for job in jobs)
    assert {("vllm_default_router", arm) for arm in logs if arm != "vllm_default_router"} == compared
    assert 4 == len(re.findall(r"\| ttft\.p50 +vllm_default_router [\d.]+ -> \w+ [\d.]+(?:, x[\d.]+ \(|: inconclusive)", report))
