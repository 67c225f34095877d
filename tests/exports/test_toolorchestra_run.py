"""`agentbench export --as toolorchestra`: tasks, usage, time series, and summaries with rates over the measured time."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli.imported import write as import_run
from pytest_agentbench.exports import load_reader, load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.toolorchestra_run import CACHE_COLUMNS, GPU_COLUMNS
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.options import RunOptions
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT, LOST, MS, NOON, START, TRIED, call, rollout


def exported(folder: Path, *rollouts: Rollout, samples: list[Json] | None = None, **changes: Any) -> Path:
    """Exports a run with these changes of its fields. Returns its directory."""
    directory = run_directory(folder / "reports" / "run", *rollouts, **changes)
    (directory / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in samples or []))
    (folder / "out").mkdir()
    load_writer("toolorchestra")(ChosenRuns([directory]), folder / "out")
    return folder / "out" / "hle_local_run"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def rows(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text(encoding="utf-8").splitlines())]


def look(number: int, second: float, hits: float, queries: float) -> Json:
    """Returns a sample of vLLM's prefix cache counters."""
    series = [["vllm:prefix_cache_hits_total", {}], ["vllm:prefix_cache_queries_total", {}]]
    first = {"first": True, "series": series} if number == 1 else {}
    when = {"round": number, "at": NOON + second, "ns": START + round(second * 1e9)}
    return {**when, "service": "engine", "replica": 0, **first, "values": [[0, hits], [1, queries]]}


def test_similar_ids(tmp_path: Path) -> None:
    """Each task has a separate file: `a/b` does not overwrite `a b`."""
    out = exported(tmp_path, *(replace(BOUGHT, scenario=id) for id in ("a/b", "a b")))

    assert {"a/b", "a b"} == {read(file)["id"] for file in out.glob("a_b*.json")}


def test_usage(tmp_path: Path) -> None:
    """Each successful call of an agent is a record, sorted by its end. If the server did not report cached tokens, the record says so."""
    out = exported(tmp_path, replace(BOUGHT, calls=(BOUGHT.calls[0], replace(BOUGHT.calls[1], cached_tokens=None))), TRIED)
    records = [json.loads(line) for line in (out / "orchestrator_usage.jsonl").read_text().splitlines()]

    assert [(100, 3, 0.6, False), (100, 1, 0.0, True), (100, 2, 0.6, False)] == [
        (each["prompt_tokens"], each["completion_tokens"], each["cached_tokens_ratio"], each["cached_tokens_inferred"]) for each in records
    ]
    assert [NOON + 0.2, NOON + 0.8, NOON + 1.3] == pytest.approx([each["ts_unix"] for each in records], abs=1e-5)


def test_series(tmp_path: Path) -> None:
    """From the second sample on, counters have differences, which are never below 0. Unknown values are nan."""
    gpu = {"round": 1, "at": NOON, "ns": START, "gpu": "0", "used_mib": 100, "total_mib": 200, "sm_percent": 50.0, "power_w": None}
    out = exported(tmp_path, *ALL, samples=[look(1, 0, 0, 0), gpu, look(2, 1, 30, 40), look(3, 2, 5, 10)])
    cache, gpus = rows(out / "prefix_cache_timeseries.csv"), rows(out / "gpu_sm_util_timeseries.csv")

    assert (list(CACHE_COLUMNS), list(GPU_COLUMNS)) == ([*cache[0]], [*gpus[0]])
    assert [("nan", "nan"), ("30.0", "0.75"), ("0.0", "nan")] == [(row["delta_hits"], row["hit_ratio"]) for row in cache]
    assert ("50.0", "nan", "100") == tuple(gpus[0][name] for name in ("sm_util", "mem_util", "mem_used_mib"))


def long_run() -> list[Rollout]:
    """Returns a task that ended before the window, and two within it.

    The last one ends about a thousand seconds after the window's start.
    """
    early = rollout("shop-0", 0, 2_000, calls=(call(0, 500, end=1_000),))
    tools = tuple(replace(BOUGHT.tool_calls[0], ended_ns=START + second * 1_000 * MS, turn=second) for second in (700, 800))
    late = [
        rollout(f"shop-{each}", 600_000, end * 1_000, tool_calls=tools, calls=(call(650_000, 650_500, end=651_000),))
        for each, end in ((1, 900), (2, 1_601))
    ]
    return [early, *late]


def test_rates_use_the_measured_time(tmp_path: Path) -> None:
    """If the run fills only a thousand seconds of a two-hour window, rates are divided by these seconds.

    The nominal length is given, too.
    """
    out = exported(tmp_path, *long_run())
    window = read(out / "window_summary.json")["windows"]["600-7800"]
    steps = read(out / "steps_summary.json")["steps"]

    assert {"trials_completed_in_window": 2, "window_duration_sec": 7200, "marker_lines_parsed": 3}.items() <= window["trials"].items()
    assert (pytest.approx(1_000, abs=1e-3), pytest.approx(2 / 1_000)) == (
        window["trials"]["measured_duration_sec"],
        window["trials"]["trials_per_sec"],
    )
    assert (4, pytest.approx(4 / 1_000)) == (steps["step_complete_in_window"], steps["steps_per_sec"])
    assert 2 == window["response_usage"]["responses"]


def test_a_step_is_a_round_in_which_a_tool_ran(tmp_path: Path) -> None:
    """An invalid call does not count as a step, because the evaluation does not execute it. A call that the tool refused counts."""
    good = BOUGHT.tool_calls[0]
    wrong = {"unknown_tool": 2, "malformed_arguments": 3, "invalid_arguments": 4}
    calls = (
        good,
        *(replace(good, turn=turn, problem=problem, detail="no") for problem, turn in wrong.items()),
        *(replace(good, turn=5, ended_ns=START + end * MS, refusal="sold out") for end in (500, 600)),
    )
    steps = read(exported(tmp_path, replace(BOUGHT, tool_calls=calls, turns=6)) / "steps_summary.json")["steps"]

    assert 2 == steps["step_complete_lines_parsed"]


def test_hit_ratios(tmp_path: Path) -> None:
    """The server's hit ratio comes from its counters, and that of the calls is given by tokens and by requests."""
    two = (replace(BOUGHT.calls[0], prompt_tokens=300, cached_tokens=0), BOUGHT.calls[1])
    out = exported(tmp_path, replace(BOUGHT, calls=two), samples=[look(1, 0, 0, 0), look(2, 0.5, 30, 40), look(3, 0.9, 30, 80)])
    window = next(value for name, value in read(out / "window_summary.json")["windows"].items() if name.startswith("0-"))

    assert 30 / 80 == window["metrics"]["hit_ratio"]
    assert (60 / 400, 0.3) == tuple(window["response_usage"][f"cached_tokens_ratio_{name}"] for name in ("token_weighted", "request_avg"))
    assert window["metrics"]["kv_cache_usage_mean_perc"] is None


def test_the_combined_summary(tmp_path: Path) -> None:
    """Steps per second are at the place where the evaluation writes them, and at the one where its README's snippet reads them."""
    combined = read(exported(tmp_path, *long_run()) / "combined_summary.json")

    assert combined["steps"]["steps"]["steps_per_sec"] == combined["steps"]["steps_per_sec"]
    assert {
        "metrics_csv": "prefix_cache_timeseries.csv",
        "usage_jsonl": "orchestrator_usage.jsonl",
        "gpu_util_csv": "gpu_sm_util_timeseries.csv",
    } == combined["paths"]
    assert "600-7800" in combined["windows"]


def test_a_run_that_ended_before_the_window(tmp_path: Path) -> None:
    """A run that ended before the window has a rate of 0 there, over no measured time. The window of the whole run has another rate."""
    out = exported(tmp_path, *ALL)
    windows = read(out / "window_summary.json")["windows"]
    steps = read(out / "steps_summary.json")["steps"]

    trials = [windows[name]["trials"]["trials_per_sec"] for name in ("600-7800", "0-2")]
    assert (0.0, True) == (trials[0], trials[1] > 0)
    assert (0.0, 0.0) == (steps["steps_per_sec"], steps["measured_duration_sec"])


def test_a_run_without_requests(tmp_path: Path) -> None:
    """If no call succeeded there is no first request, and each summary says so."""
    out = exported(tmp_path, LOST)

    assert {"ok": False, "reason": "no_t0", "windows": None} == read(out / "combined_summary.json") == read(out / "window_summary.json")


def imported(out: Path, reports: Path) -> list[Rollout]:
    directory, _ = import_run("toolorchestra", load_reader("toolorchestra")(out), out, None, reports)
    return [*read_journal(directory)]


def test_fields_that_come_back(tmp_path: Path) -> None:
    """After export and import, status, answer, tools with arguments, the question and correctness are equal."""
    limited = replace(BOUGHT, scenario="shop-3", status="limit", reason="turns", answer="")
    back = imported(exported(tmp_path, *ALL, limited), tmp_path / "imported")

    assert ["ok", "ok", "infra_error", "limit"] == [each.status for each in back]
    assert ("Here it is.", "Is there a lamp?") == (back[0].answer, back[0].messages[0]["content"])
    assert [("find_item", {"item": "lamp"}), ("answer", {})] == [(tool.name, tool.arguments) for tool in back[0].tool_calls]
    assert [1.0, 0.0] == [float(score) for each in back[:2] for score in each.scores.values()]


def test_lost_fields(tmp_path: Path) -> None:
    """Times, calls, labels and the value of a score are lost. An agent's error becomes a tool's error, and a cancelled task has no file."""
    failed = replace(BOUGHT, scenario="shop-1", status="agent_error", reason="oh", scores={})
    back = imported(exported(tmp_path, BOUGHT, failed, replace(LOST, status="cancelled")), tmp_path / "imported")

    assert ["ok", "infra_error"] == [each.status for each in back]
    assert (0, (), ()) == (back[0].started_ns, back[0].calls, back[0].expected)


#: The fields with the text and number of each round, which an import lacks.
NO_RESPONSES: Json = {"all_message_responses": {}, "all_tool_responses": {}}


def test_an_imported_run_is_exported_unchanged(tmp_path: Path) -> None:
    """An imported run is exported with the same tasks: calls, prediction and correctness."""
    first = exported(tmp_path / "first", BOUGHT, TRIED)
    directory, _ = import_run("toolorchestra", load_reader("toolorchestra")(first), first, None, tmp_path / "imported")
    (tmp_path / "second").mkdir()
    load_writer("toolorchestra")(ChosenRuns([directory]), tmp_path / "second")
    (second,) = (tmp_path / "second").iterdir()

    for name in ("shop-0.json", "shop-1.json"):
        assert {**read(first / name), **NO_RESPONSES} == {**read(second / name), **NO_RESPONSES}


def test_later_trials_have_directories(tmp_path: Path) -> None:
    """A task's file is named after its id, so a second trial is in a separate directory, and comes back as a second trial."""
    out = exported(tmp_path, BOUGHT, replace(BOUGHT, trial=2))

    assert ["shop-0.json", "trial_2/shop-0.json"] == sorted(str(path.relative_to(out)) for path in out.rglob("shop-*.json"))
    assert [("shop-0", 1), ("shop-0", 2)] == [(each.scenario, each.trial) for each in imported(out, tmp_path / "imported")]


@pytest.mark.parametrize(("window", "name"), [((0.0, 0.5), "0-0.5"), ((600.0, None), "600-600"), (None, "600-7800")])
def test_the_window_of_the_run_is_used(tmp_path: Path, window: tuple[float, float | None] | None, name: str) -> None:
    """The window is that of the run, until its end if no end is set. Without one, the evaluation's own window is used."""
    out = exported(tmp_path, *ALL, settings=RunOptions(backend="embedded", concurrency=8, window=window))
    combined = read(out / "combined_summary.json")

    low, high = map(float, name.split("-"))
    steps, first = combined["steps"], combined["t0_first_request_unix"]
    assert name == next(iter(combined["windows"]))
    assert (pytest.approx(low), pytest.approx(high)) == (steps["t_start_unix"] - first, steps["t_end_unix"] - first)
