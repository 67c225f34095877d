"""The methods of ThunderAgent's paper as arms of one session: the shipped YAML files and their real routers, with engines without a GPU."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest
import yaml

from pytest_agentbench.backends.machine.virtual_environments import environments_folder, resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.project import ALONE, FIND_THEN_ANSWER, Project
from tests.real.booted_stack import ROOT
from tests.robustness.processes import Background
from tests.small_stacks import own_folder

pytestmark = pytest.mark.timeout(500)

#: The others are compared with the first one.
METHODS = ("vllm-default-router", "vllm-continuum", "thunderagent", "thunderagent-no-decay", "dynamo-thunderagent")

#: What ThunderAgent's router logs when it starts: its mode, and whether the tokens of idle programs decay.
MODES = {
    "vllm_default_router": ("Router mode: default", False),
    "vllm_continuum": ("Router mode: default", False),
    "thunderagent": ("Router mode: tr", True),
    "thunderagent_no_decay": ("Router mode: tr", False),
}

#: Files of the original for each run.
WINDOW_FILES = {
    *("orchestrator_usage.jsonl", "prefix_cache_timeseries.csv", "gpu_sm_util_timeseries.csv"),
    *("window_summary.json", "steps_summary.json", "combined_summary.json"),
}

#: The mocker writes until its limit.
ENDS = "def test_it(rollout): assert rollout.status in ('ok', 'limit')\n"

ENVIRONMENTS = environments_folder()  # read here, because the sessions of tests have another HOME


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


def write_methods(project: Project, rules: Sequence[Json], worker: Json) -> None:
    """Writes backends/ with the shipped methods. Their engines follow the rules; routers, labels and order of start are as shipped.

    `worker` replaces the worker services of Dynamo.
    """
    script = project.root / "rules.json"
    script.write_text(json.dumps([{"ttft_ms": 20, **rule} for rule in rules]), encoding="utf-8")
    for name in METHODS:
        stack = shipped(name)
        config = {"policy": "script", "script": str(script), "model": "{model}", "kv_blocks": 4096}
        asked = json.dumps(config)[:-1] + f', "request_log": "{project.root / name}.jsonl", "port": {{port}}}}'
        engine = {"python": "agentbench", "run": ["python", "-m", "pytest_agentbench.engine", asked]}
        places = {"ready": {"http": "/health"}, "metrics": "/metrics"}
        if name == "dynamo-thunderagent":
            own = {"engine": {**engine, **places}} if "{engine.urls}" in worker["run"] else {}
            stack["services"] |= {**own, "worker": worker}
            stack |= {"model": str(project.root / "model"), "python": "dynamo"}
            stack["env"] |= {"HF_HUB_OFFLINE": 1, "DYN_LOG": "info"}
        else:
            stack["services"]["engine"] = {**stack["services"]["engine"], **engine}
            del stack["services"]["engine"]["gpus"]
            stack["model"] = "embedded"
        project.write(f"backends/{name}.yaml", json.dumps({**stack, "warm_up": 1, "ready": {"timeout": 120, "tools": "none"}}))


def mocker(project: Project) -> Json:
    """Returns Dynamo's mocker, which answers with random text, and reports the size of its cache to the router."""
    make = f"from pathlib import Path; import tiny_tokenizer; tiny_tokenizer.make(Path({str(project.root / 'model')!r}))"
    subprocess.run([resolve_python("dynamo", ROOT), "-c", make], cwd=ROOT / "backends", check=True, timeout=60)
    options = ["--model-name=behind-thunderagent", "--speedup-ratio=100", "--block-size=16", "--num-gpu-blocks-override=16384"]
    run = ["python", str(ROOT / "backends" / "dynamo_mocker.py"), str(project.root / "model"), *options]
    return {**shipped("dynamo-mocker")["services"]["worker"], "run": run, "replicas": 2}


def speaker(project: Project) -> Json:
    """Returns a worker of Dynamo that answers like the built-in engine."""
    mocker(project)
    folder = str(project.root / "model")
    run = ["python", str(ROOT / "backends" / "dynamo_embedded_worker.py"), "{engine.urls}", "{replica}", "behind-thunderagent", folder]
    return {**shipped("dynamo-embedded")["services"]["worker"], "run": run, "replicas": 1}


def test_five_methods_as_arms(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session runs all methods in turns.

    Calls pass the router of their arm, programs are released, and each arm is compared with the first.
    """
    write_methods(project, FIND_THEN_ANSWER, mocker(project))
    project.suite(scenarios=24, test=ENDS, agent={"kind": "tool_calling", "max_tokens": 20})
    with own_folder(monkeypatch):
        background = Background(project, "scenarios/shop", "-v", f"--agentbench-ab={','.join(METHODS)}", "--agentbench-concurrency=4")
        status = background.ended(400)
    run = json.loads((background.directory / "run.json").read_text(encoding="utf-8"))
    told = [each for _, each in said(report_of(background.directory, Level.VERBOSE), gate_phrases.comparison) if each.metric == "ttft.p50"]
    logs = {arm: (background.directory / "backend" / arm / "router.log").read_text() for arm in (*MODES, "dynamo_thunderagent")}
    modes = {arm: (mode, "Acting token decay: enabled" in logs[arm]) for arm, (mode, _) in MODES.items() if mode in logs[arm]}
    jobs = {line["job_id"] for line in map(json.loads, (project.root / "vllm-continuum.jsonl").read_text().splitlines())}
    compared = {(each["base_arm"], each["new_arm"]) for each in run["ab"]["comparisons"] if each["metric"] == "ttft.p50"}

    assert 0 == status, background.output
    assert "NO GATE" == run["verdict"]
    assert {"labelled": 120, "announced": 120, "released": 120, "failed": 0, "bypassed": 0, "left": 0} == run["labels"]
    assert [("", 24)] * 5 == [(arm["failure"], arm["rollouts"]["ok"] + arm["rollouts"]["limit"]) for arm in run["ab"]["arms"]]
    assert modes == MODES
    assert 24 == logs["dynamo_thunderagent"].count(f"path=session_final program={background.directory.name}")
    assert 24 == sum(job.startswith(background.directory.name) for job in jobs)
    assert {("vllm_default_router", arm) for arm in logs if arm != "vllm_default_router"} == compared
    assert [("vllm_default_router", True)] * 4 == [(each.base_arm, None not in (each.base, each.new)) for each in told]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NOT TESTED: bubblewrap is not installed")
def test_the_throughput_figure(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """`agentbench reproduce hle-throughput` measures all methods on the suite `hle`. Each has a row, a ratio and the original's files."""
    project.shipped("hle")
    rules = yaml.safe_load((project.root / "scenarios" / "hle" / "orchestrated_answers.yaml").read_text(encoding="utf-8"))
    write_methods(project, rules, speaker(project))
    words = [
        f"--methods={','.join(METHODS)}",
        "--concurrency=2",
        "--duration=3s",
        "--window=0s:3s",
        "--sample-interval=500ms",
        "--output=out",
    ]
    command = [sys.executable, "-m", "pytest_agentbench.cli", "reproduce", "hle-throughput", *words, "--", *ALONE, "--agentbench-trials=20"]
    with own_folder(monkeypatch):
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False, timeout=400)
    assert 0 == done.returncode, done.stdout + done.stderr
    out = project.root / "out"
    rows = [*csv.DictReader((out / "throughput.csv").read_text(encoding="utf-8").splitlines())]
    folders = {row["method"]: out / f"hle_paper_{row['method']}_c2_rep1_{row['run']}" for row in rows}
    files = {method: {file.name for file in folder.iterdir() if file.is_file()} for method, folder in folders.items()}

    assert sorted(METHODS) == [row["method"] for row in rows]
    assert [] == [row for row in rows if not (float(row["steps_per_min"]) > 0 and float(row["ratio_to_baseline"]) > 0)]
    assert "1.0" == next(row["ratio_to_baseline"] for row in rows if row["method"] == METHODS[0])
    assert dict.fromkeys(METHODS, WINDOW_FILES) == {method: names & WINDOW_FILES for method, names in files.items()}
    assert (out / "throughput.png").stat().st_size > 0
