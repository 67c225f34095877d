"""Every export and table of a run with arms, trials, variants and retries has the numbers of report.md and run.json."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from pyarrow import parquet

from pytest_agentbench import load
from pytest_agentbench.cli import main
from pytest_agentbench.exports import EXPORTS, load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics import registry
from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases, openmetrics
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.run_file import read_run
from tests.findings import report_of, said
from tests.openmetrics import parsed
from tests.project import FIND_THEN_ANSWER, Project

Figures = Mapping[str, Mapping[str, object]]  # arm -> figure -> value

#: In each arm, the first request of the first two customers fails, and the last customer never gets an answer.
FLAKY: list[Json] = [
    *({"match": {"contains": f"Customer shop-{number}:", "call": 1}, "status": 500} for number in range(2)),
    {"match": {"contains": "Customer shop-5:"}, "status": 500},
    *FIND_THEN_ANSWER,
]
VARIANTS = {"brief": {"agent": {"max_turns": 4}}, "long": {"agent": {"max_turns": 5}}}


def told(run: Json) -> dict[str, Json]:
    """Returns the numbers of each arm in run.json."""
    suites = {suite["variant"]: suite for suite in run["suites"].values()}
    return {arm["name"]: _told(run, arm, suites[arm["name"]]) for arm in run["ab"]["arms"]}


def _told(run: Json, arm: Json, suite: Json) -> Json:
    asked = re.fullmatch(r"concurrency=(\d+)", arm["value"])
    return {
        "concurrency": int(asked[1]) if asked else run["settings"]["concurrency"],
        "model": arm["model"],
        "rollouts": sum(arm["rollouts"].values()),
        "ok": arm["rollouts"]["ok"],
        "infra_error": arm["rollouts"]["infra_error"],
        "retried": suite["retried"],
        "calls": arm["calls"],
        "failed_calls": arm["failed_calls"],
        "good_calls": arm["calls"] - arm["failed_calls"],
        "output_tokens": round(arm["output_tokens_per_s"] * arm["busy_s"]),
        "busy_s": pytest.approx(arm["busy_s"], rel=1e-3),
        **{name: pytest.approx(arm[name], rel=1e-3) for name in registry.rates() if arm[name] is not None},
        "score": suite["scores"]["tsq"]["mean_evaluable"]["value"],
        "score_or_0": pytest.approx(
            suite["scores"]["tsq"]["mean_evaluable"]["value"] * arm["rollouts"]["ok"] / sum(arm["rollouts"].values())
        ),
    }


def of_report(directory: Path) -> Figures:
    """Returns the numbers in the report's facts about arms."""
    return {
        arm.name: {
            "ok": arm.rollouts["ok"],
            "rollouts": sum(arm.rollouts.values()),
            "rollouts_per_hour": arm.metrics["rollouts_per_hour"],
            "output_tokens_per_s": arm.metrics["output_tokens_per_s"],
        }
        for (arm,) in said(report_of(directory), gate_phrases.arm)
    }


def of_serving(directory: Path) -> Figures:
    """Returns the table of arms in report.md, which has rounded rates."""
    report = (directory / "report.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| [\d,.]+ \| ([\d,.]+) \| ([\d,.]+) \|$", report, re.MULTILINE)
    return {
        arm: {
            "calls": int(calls),
            "failed_calls": int(failed),
            "output_tokens_per_s": _number(tokens),
            "rollouts_per_hour": _number(rate),
        }
        for arm, calls, failed, tokens, rate in rows
    }


def of_show(said: str) -> dict[str, tuple[int, float]]:
    """Returns calls and wall-clock seconds from the tables of `agentbench show --as nat`."""
    found = re.findall(r"of arm (\w+), .*?Total LLM Calls +(\d+)\n.*?Wall-Clock Time \(s\) +([\d.]+)\n", said, re.DOTALL)
    return {arm: (int(calls), float(seconds)) for arm, calls, seconds in found}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def of_tables(calls: pd.DataFrame, rollouts: pd.DataFrame, scores: pd.DataFrame) -> Figures:
    """Returns the numbers of each arm in data frames of any format, which also have first calls before blocks."""
    arms = {*rollouts[rollouts["kind"] == "scenario"]["variant"]}
    return {arm: _of_tables(*(table[table["variant"] == arm] for table in (calls, rollouts, scores))) for arm in arms}


def _of_tables(calls: pd.DataFrame, rollouts: pd.DataFrame, scores: pd.DataFrame) -> Json:
    failed = calls["error_kind"].notna()
    whole = scores[scores["part"].isna() & (scores["score"] == "tsq")]
    return {
        "rollouts": len(rollouts),
        "ok": int((rollouts["status"] == "ok").sum()),
        "infra_error": int((rollouts["status"] == "infra_error").sum()),
        "retried": int((rollouts["attempts"] > 1).sum()),
        "calls": int(calls["measured"].sum()),
        "failed_calls": int(failed.sum()),
        "output_tokens": int(calls[~failed]["output_tokens"].sum()),
        "score": float(whole["value"].mean()),
    }


def of_csv(out: Path) -> Figures:
    return of_tables(*(pd.read_csv(out / f"{name}.csv") for name in ("calls", "rollouts", "scores")))


def of_parquet(out: Path) -> Figures:
    return of_tables(*(pd.DataFrame(parquet.read_table(out / f"{name}.parquet").to_pylist()) for name in ("calls", "rollouts", "scores")))


def of_benchmark(out: Path) -> Figures:
    """Returns the numbers in a pytest-benchmark file, in which rounds are calls or rollouts."""
    rounds = {each["fullname"]: each["stats"]["rounds"] for each in _json(out / "run.json")["benchmarks"]}
    arms = {name.partition("::")[0] for name in rounds}
    return {arm.removeprefix("shop-"): {"good_calls": rounds[f"{arm}::ttft"], "rollouts": rounds[f"{arm}::rollout"]} for arm in arms}


def of_perfetto(out: Path) -> Figures:
    slices = [each for each in _json(out / "trace.json")["traceEvents"] if each["ph"] == "X"]
    attempts = [each for each in slices if each["cat"] == "attempt" and "before block" not in each["name"]]
    attempts.sort(key=lambda each: float(each["ts"]))
    calls = [each for each in slices if each["cat"] == "call" and each["name"].startswith("embedded")]
    arms = {_arm(each["name"]) for each in attempts}
    return {arm: _of_perfetto([each for each in attempts if _arm(each["name"]) == arm], calls) for arm in arms}


def _arm(key: str) -> str:
    """Returns the arm in the name of a rollout, `shop[shop-0-ARM-t2]`."""
    return re.sub(r"^shop\[shop-\d-|(-t\d)?\]$", "", key)


def _of_perfetto(attempts: Sequence[Json], calls: Sequence[Json]) -> Json:
    busy, end = 0.0, 0.0
    for each in attempts:
        busy += max(0.0, each["ts"] + each["dur"] - max(end, each["ts"]))
        end = max(end, each["ts"] + each["dur"])
    own = [call for call in calls if any(each["ts"] <= call["ts"] < each["ts"] + each["dur"] for each in attempts)]
    good = [call["args"] for call in own if "error_kind" not in call["args"]]
    return {
        "rollouts": len({each["name"] for each in attempts}),
        "retried": len({each["name"] for each in attempts if each["args"]["attempt"] > 1}),
        "calls": len(own),
        "good_calls": len(good),
        "output_tokens": sum(each["completion_tokens"] for each in good),
        "busy_s": busy / 1e6,
    }


def of_nat(out: Path) -> Figures:
    """Returns the numbers of each arm from its row in the benchmark and its job."""
    rows = [row for file in out.glob("benchmarks/*/benchmark_results.csv") for row in _rows(file)]
    return {job.parents[1].name.removeprefix("shop-"): _of_nat(job, rows) for job in out.glob("dynamo_evals/*/jobs/job_run")}


def _of_nat(job: Path, rows: Iterable[Mapping[str, str]]) -> Json:
    config = _yaml(job / "config_effective.yml")
    of_calls = _rows(job / "tokens_per_second_analysis.csv")
    total = sum(float(call["duration_sec"]) for call in of_calls)
    ttft_ms = fmean(float(call["time_to_first_token_sec"]) for call in of_calls) * 1e3
    alike = [row for row in rows if float(row["sum_of_durations_sec"]) == pytest.approx(total, abs=0.006)]
    # Two arms may have the same duration.
    [row] = [row for row in alike if float(row["ttft_mean_ms"]) == pytest.approx(ttft_ms, abs=0.006)]
    assert int(row["concurrency"]) == config["eval"]["general"]["max_concurrency"]
    items = _json(job / "tool_selection_quality_output.json")["eval_output_items"]
    usage = [each for each in _rows(job / "standardized_data_all.csv") if each["event_type"] == "LLM_END"]
    return {
        "concurrency": int(row["concurrency"]),
        "good_calls": int(row["total_llm_calls"]),
        "busy_s": int(row["total_tokens"]) / float(row["aggregate_throughput_toks"]),
        "model": config["llms"]["llm"]["model_name"],
        "rollouts": len(_json(job / "workflow_output.json")),
        "ok": len(items),
        "score": fmean(item["score"] for item in items),
        "output_tokens": sum(int(each["completion_tokens"]) for each in usage),
    }


def of_atif(out: Path) -> Figures:
    """Returns the numbers in Harbor's jobs, in which a trial without a reward counts as 0."""
    return {job.name.removeprefix("run-shop-"): _of_atif(job) for job in out.iterdir()}


def _of_atif(job: Path) -> Json:
    result = _json(job / "result.json")
    [(_, counted)] = result["stats"]["evals"].items()
    trials = [_json(file) for file in job.glob("*/result.json")]
    [model] = {trial["agent_info"]["model_info"]["name"] for trial in trials}
    return {
        "concurrency": _json(job / "config.json")["n_concurrent_trials"],
        "model": model,
        "rollouts": result["n_total_trials"],
        "ok": counted["n_trials"],
        "infra_error": len(counted["exception_stats"]["InfraError"]),
        "output_tokens": sum(trial["agent_result"]["n_output_tokens"] or 0 for trial in trials),
        "score_or_0": counted["metrics"][0]["mean"],
    }


def of_toolorchestra(out: Path) -> Figures:
    return {folder.name.removeprefix("hle_local_run-"): _of_toolorchestra(folder) for folder in out.iterdir()}


def _of_toolorchestra(folder: Path) -> Json:
    usage = [json.loads(line) for line in (folder / "orchestrator_usage.jsonl").read_text(encoding="utf-8").splitlines()]
    tasks = [_json(file) for file in folder.rglob("shop-*.json")]
    return {
        "rollouts": len(tasks),
        "ok": sum(task["status"] == "done" for task in tasks),
        "good_calls": len(usage),
        "output_tokens": sum(each["completion_tokens"] for each in usage),
    }


def of_mooncake(out: Path) -> Figures:
    """Returns the numbers in the trace of all requests."""
    found: defaultdict[str, list[Json]] = defaultdict(list)
    for line in (out / "run.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[_arm(row["session_id"].rpartition("-")[0])].append(row)
    return {arm: {"good_calls": len(rows), "output_tokens": sum(row["output_length"] for row in rows)} for arm, rows in found.items()}


def of_aiperf(out: Path) -> Figures:
    """Returns the numbers of requests that AIPerf would send again."""
    sessions = [json.loads(line)["session_id"] for line in (out / "run-chat.jsonl").read_text(encoding="utf-8").splitlines()]
    return {arm: {"good_calls": count} for arm, count in Counter(_arm(id.rpartition("-")[0]) for id in sessions).items()}


def of_otel(out: Path) -> Figures:
    """Returns the numbers in the spans of all sessions."""
    found: defaultdict[str, list[Json]] = defaultdict(list)
    for session in map(_json, (out / "run").glob("*.json")):
        found[_arm(session["session_id"].rpartition("-")[0])] += session["spans"]
    tokens = "gen_ai.usage.output_tokens"
    return {
        arm: {"good_calls": len(spans), "output_tokens": sum(span["attributes"][tokens] for span in spans)} for arm, spans in found.items()
    }


def of_openmetrics(directory: Path) -> Figures:
    found: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for family in parsed(openmetrics.text(read_run(directory)).decode()):
        for sample in family.samples:
            arm = sample.labels.get("arm") or sample.labels.get("suite", "").removeprefix("shop-")
            name = sample.name.removeprefix("agentbench_").removeprefix("arm_")
            if sample.labels.get("status") in ("ok", "infra_error"):
                found[arm][sample.labels["status"]] = sample.value
            elif "arm" in sample.labels:
                found[arm][name] = sample.value
    return {arm: figures for arm, figures in found.items() if arm}


def of_junit(file: Path) -> Figures:
    tests: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for case in ET.parse(file).iter("testcase"):
        arm = _arm(case.attrib["name"].replace("test_tools", "shop"))
        tests[arm].append({each.attrib["name"]: each.attrib["value"] for each in case.iter("property")})
    return {arm: _of_junit(properties) for arm, properties in tests.items()}


def _of_junit(tests: Sequence[Mapping[str, str]]) -> Json:
    return {
        "rollouts": len(tests),
        "ok": sum(test["status"] == "ok" for test in tests),
        "infra_error": sum(test["status"] == "infra_error" for test in tests),
        "retried": sum(int(test["attempt"]) > 1 for test in tests),
        "calls": sum(int(test["llm_calls"]) for test in tests),
        "output_tokens": sum(int(test.get("output_tokens", 0)) for test in tests),
        "score": fmean(float(test["tsq"]) for test in tests if "tsq" in test),
    }


#: Contains each format of `agentbench export`.
READERS: Mapping[str, Callable[[Path], Figures]] = {
    "csv": of_csv,
    "parquet": of_parquet,
    "pytest-benchmark": of_benchmark,
    "perfetto": of_perfetto,
    "nat": of_nat,
    "atif": of_atif,
    "toolorchestra": of_toolorchestra,
    "mooncake": of_mooncake,
    "aiperf": of_aiperf,
    "otel": of_otel,
}


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _yaml(file: Path) -> Any:
    import yaml

    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _rows(file: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(file.read_text(encoding="utf-8").splitlines())]


def extent_read(job: Path) -> float:
    """Returns seconds from the first start of a call to the last end, computed like the toolkit's throughput_analysis.py."""
    events = _rows(job / "standardized_data_all.csv")
    starts, ends = ([float(each["event_timestamp"]) for each in events if each["event_type"] == f"LLM_{kind}"] for kind in ("START", "END"))
    return max(ends) - min(starts)


def extent_told(directory: Path, arm: str) -> float:
    """Returns seconds from the first start of a call to the last end, limited to the times in which rollouts of the arm ran."""
    attempts = [attempt for each in read_journal(directory) if each.variant == arm for attempt in each.attempts]
    calls = [call for attempt in attempts for call in attempt.calls]
    at = min(call.called_ns or call.received_ns for call in calls)
    last = max(call.ended_ns for call in calls if call.error_kind is None)
    extent = 0
    for attempt in sorted(attempts, key=lambda attempt: attempt.started_ns):
        extent += max(0, min(attempt.ended_ns, last) - max(attempt.started_ns, at))
        at = max(at, attempt.ended_ns)
    return extent / 1e9


def measured(project: Project, arms: str) -> Path:
    """Runs these arms with two trials and some retries. Returns the run directory, named `run`."""
    project.suite(scenarios=6, variants=VARIANTS)
    project.backend(FLAKY, ttft_ms=30)
    project.run("scenarios/shop", f"--agentbench-ab={arms}", "--agentbench-trials=2", "--junitxml=junit.xml")
    return project.directory.rename(project.root / "run")


@pytest.mark.slow
@pytest.mark.parametrize("arms", ["set:concurrency=2|4", "variant:brief,variant:long"], ids=["concurrency", "variant"])
def test_all_formats_agree(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], arms: str) -> None:
    """Each number that a format shares with the report has the arm's value, not that of the run or of another arm."""
    directory = measured(project, arms)
    expected = told(_json(directory / "run.json"))
    assert 0 == main(["show", str(directory), "--as", "nat"])
    shown = of_show(capsys.readouterr().out)
    frames = load(directory)
    found = {
        "report.md": of_report(directory),
        "serving": of_serving(directory),
        "show": {arm: {"good_calls": calls} for arm, (calls, _) in shown.items()},
        "load": of_tables(frames.calls, frames.rollouts, frames.scores),
        "metrics.txt": of_openmetrics(directory),
        "junit.xml": of_junit(project.root / "junit.xml"),
    }
    for name in EXPORTS:
        (tmp_path / name).mkdir()
        load_writer(name)(ChosenRuns([directory]), tmp_path / name)
        found[name] = READERS[name](tmp_path / name)

    for arm in expected:
        [job] = (tmp_path / "nat").glob(f"dynamo_evals/shop-{arm}/jobs/*")
        assert extent_told(directory, arm) == pytest.approx(extent_read(job), abs=1e-3)
        # The toolkit does not count failed calls.
        assert 0 < shown[arm][1] < extent_told(directory, arm) + 0.01
    assert {True} == {each["retried"] > 0 for each in expected.values()}
    for name, figures in found.items():
        wanted = {arm: {figure: expected[arm][figure] for figure in of_arm} for arm, of_arm in figures.items()}
        assert (name, {*expected}) == (name, {*figures})
        assert (name, wanted) == (name, figures)
