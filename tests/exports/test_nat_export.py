"""`agentbench export --as nat` writes the toolkit's files by its own definitions, which can be imported again."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.cli.imported import write as import_run
from pytest_agentbench.exports import load_reader, load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.nat_profiler import BENCHMARK_COLUMNS, CALL_COLUMNS, EVENT_COLUMNS
from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.options import RunOptions
from tests.exports.nat_job import VECTOR, item, tool, trace, write_job
from tests.made_runs import run_directory, run_of
from tests.tables.shop import ALL, BOUGHT, LOST, NOON, TRIED, call, rollout


def exported(folder: Path, *directories: Path) -> Path:
    """Exports these runs. Returns the directory."""
    folder.mkdir()
    load_writer("nat")(ChosenRuns(directories), folder)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text(encoding="utf-8").splitlines())]


def vector(folder: Path) -> Path:
    """Creates a run with the example of the reference, in milliseconds after 100 s."""
    one = rollout("shop-0", 0, 1_200, calls=(call(0, 200, 250, 350, 400, end=500), call(1_000, 1_100, end=1_200)), scores={"tsq": Score(1)})
    other = rollout("shop-1", 100, 1_400, calls=(call(100, 400, 500, 600, end=700), call(1_000, end=1_400)), scores={"tsq": Score(0.5)})
    return run_directory(folder, one, other, settings=RunOptions(backend="embedded", concurrency=16))


def test_the_worked_vector(tmp_path: Path) -> None:
    """Calls, gaps and the benchmark have the numbers of the reference's example."""
    out = exported(tmp_path / "out", vector(tmp_path / "run"))
    job = out / "dynamo_evals/shop/jobs/job_run"
    calls, gaps = rows(job / "tokens_per_second_analysis.csv"), rows(job / "inter_token_latency_distribution.csv")
    (result,) = rows(out / "benchmarks/shop/benchmark_results.csv")

    assert list(CALL_COLUMNS) == [*calls[0]]
    assert [("0", "1", 4), ("0", "2", 1), ("1", "1", 3)] == [
        (row["example_num"], row["llm_call_id"], int(row["num_tokens"])) for row in calls
    ]
    assert [0.5, 0.2, 0.6] == pytest.approx([float(row["duration_sec"]) for row in calls], abs=1e-6)
    assert [0.05, 0.1, 0.05, 0.1, 0.1] == pytest.approx([float(row["itl_sec"]) for row in gaps], abs=1e-6)
    assert "" == calls[1]["mean_itl_sec"]
    assert 0.1 == pytest.approx(float(calls[2]["median_itl_sec"]), abs=1e-6)
    expected = {
        "concurrency": "16",
        "total_llm_calls": "3",
        "total_tokens": "8",
        "sum_of_durations_sec": "1.30",
        "wall_clock_time_sec": "1.20",
        "ttft_mean_ms": "200.00",
        "ttft_median_ms": "200.00",
        "ttft_p90_ms": "280.00",
        "ttft_p95_ms": "290.00",
        "ttft_p99_ms": "298.00",
        "itl_mean_ms": "80.00",
        "itl_median_ms": "100.00",
        "itl_percall_mean_ms": "83.33",
        "per_request_throughput_mean_toks": "6.00",
        "per_request_throughput_median_toks": "5.00",
        "per_request_throughput_p90_toks": "7.40",
        "aggregate_throughput_toks": "6.67",
        "aggregate_speedup": "1.11",
    }
    assert expected == {name: result[name] for name in expected}
    assert list(BENCHMARK_COLUMNS) == [*result]
    assert 32 == len(result)


def test_both_layouts(tmp_path: Path) -> None:
    """Each suite of a run is a job of an experiment, and runs of a suite are rows of a benchmark, sorted by concurrency."""
    runs = [vector(tmp_path / "wide"), run_directory(tmp_path / "narrow", *ALL)]
    out = exported(tmp_path / "out", *runs)
    jobs = out / "dynamo_evals/shop/jobs"

    assert ["job_narrow", "job_wide"] == sorted(folder.name for folder in jobs.iterdir())
    assert ["8", "16"] == [row["concurrency"] for row in rows(out / "benchmarks/shop/benchmark_results.csv")]
    assert {"analysis_8.txt", "analysis_16.txt", "benchmark_results.csv", "benchmark_report.md"} == {
        file.name for file in (out / "benchmarks/shop").iterdir()
    }
    assert {
        *("config_effective.yml", "config_original.yml", "config_metadata.json", "workflow_output.json", "exact_output.json"),
        *("tool_selection_quality_output.json", "standardized_data_all.csv", "all_requests_profiler_traces.json"),
        *("tokens_per_second_analysis.csv", "inter_token_latency_distribution.csv"),
        *("inference_optimization.json", "workflow_profiling_report.txt"),
    } == {file.name for file in (jobs / "job_narrow").iterdir()}


def test_runs_of_one_concurrency(tmp_path: Path) -> None:
    """Two runs with the same concurrency have separate analysis files."""
    out = exported(tmp_path / "out", *(run_directory(tmp_path / name, BOUGHT) for name in ("one", "two")))

    assert {"analysis_8.txt", "analysis_8_2.txt"} == {file.name for file in (out / "benchmarks/shop").glob("*.txt")}


def test_events(tmp_path: Path) -> None:
    """The CSV has the toolkit's columns and a row for each event. A failed call has no end."""
    out = exported(tmp_path / "out", run_directory(tmp_path / "run", *ALL))
    events = rows(out / "dynamo_evals/shop/jobs/job_run/standardized_data_all.csv")
    kinds = [(row["example_number"], row["event_type"]) for row in events]

    assert list(EVENT_COLUMNS) == [*events[0]]
    assert 1 == kinds.count(("0", "TOOL_START")) == kinds.count(("0", "TOOL_END"))
    assert (2, 2) == (kinds.count(("1", "LLM_START")), kinds.count(("1", "LLM_NEW_TOKEN")))
    assert 1 == kinds.count(("1", "LLM_END"))
    assert "1700000000.100000000" == next(row["event_timestamp"] for row in events if row["event_type"] == "LLM_NEW_TOKEN")
    assert "Here it is." in [row["llm_text_output"] for row in events]


def test_evaluators(tmp_path: Path) -> None:
    """TSQ is exported as the toolkit's tool_selection_quality, with the tools.

    A missing score is an error, and counts as 0.0 in the average.
    """
    out = exported(tmp_path / "out", run_directory(tmp_path / "run", *ALL))
    tsq, exact = (
        json.loads((out / f"dynamo_evals/shop/jobs/job_run/{name}_output.json").read_text()) for name in ("tool_selection_quality", "exact")
    )

    assert (0.5, 0.0) == (tsq["average_score"], exact["average_score"])
    assert [("shop-0", 1.0), ("shop-1", 0.0)] == [(each["id"], each["score"]) for each in tsq["eval_output_items"]]
    reasoning = tsq["eval_output_items"][0]["reasoning"]
    assert {"actual_tools": ["find_item"], "expected_tools": ["find_item"]} == reasoning["details"]
    assert (1.0, 1.0) == (reasoning["tool_selection_accuracy"], reasoning["parameter_usage_accuracy"])
    assert "tool_selection_accuracy" not in exact["eval_output_items"][0]["reasoning"]
    assert "ValueError: no label" == exact["eval_output_items"][0]["error"]


def test_positions_follow_the_order_of_ids(tmp_path: Path) -> None:
    """Examples are numbered in the order of ids, with shop-10 after shop-9, because the toolkit's plots join them by position."""
    made = [rollout(f"shop-{number}", number, number + 1) for number in (10, 9, 1, 0, 2, 3, 4, 5, 6, 7, 8)]
    out = exported(tmp_path / "out", run_directory(tmp_path / "run", *made))
    job = out / "dynamo_evals/shop/jobs/job_run"

    assert [f"shop-{number}" for number in range(11)] == [entry["id"] for entry in json.loads((job / "workflow_output.json").read_text())]
    traces = json.loads((job / "all_requests_profiler_traces.json").read_text(encoding="utf-8"))
    assert [*range(11)] == [request["request_number"] for request in traces]
    places = {row["example_number"]: float(row["event_timestamp"]) for row in rows(job / "standardized_data_all.csv")}
    assert {str(number): pytest.approx(NOON + (number + 1) / 1e3, abs=1e-5) for number in range(11)} == places


def imported(out: Path, reports: Path) -> tuple[list[Rollout], Json]:
    """Returns the rollouts and suites that `agentbench import nat` reads from an export."""
    directory, run = import_run("nat", load_reader("nat")(out / "dynamo_evals/shop"), out, None, reports)
    return [*read_journal(directory)], dict(run.suites)


def of_call(made: Rollout) -> list[Json]:
    """Returns the fields of a rollout's calls that come back."""
    start = made.started_ns
    return [
        {
            "model": each.model,
            "tokens": (each.prompt_tokens, each.completion_tokens),
            "times": [at - start for at in (each.called_ns or each.sent_ns or 0, *(chunk.at_ns for chunk in each.chunks), each.ended_ns)],
            "kinds": [chunk.kind for chunk in each.chunks],
        }
        for each in made.calls
    ]


def test_fields_that_come_back(tmp_path: Path) -> None:
    """After export and import, scenario, trial, scores, answer, labels, and names, times and tokens of calls and tools are equal."""
    again = replace(BOUGHT, trial=2, started_ns=BOUGHT.started_ns, answer="Again.")
    out = exported(tmp_path / "out", run_directory(tmp_path / "run", BOUGHT, again))
    back, _ = imported(out, tmp_path / "reports")

    assert [("shop-0", 1), ("shop-0", 2)] == [(each.scenario, each.trial) for each in back]
    for sent, came in zip((BOUGHT, again), back, strict=True):
        assert of_call(sent) == of_call(came)
        assert (sent.answer, sent.expected, sent.tools) == (came.answer, came.expected, came.tools)
        assert [each.arguments for each in sent.tool_calls] == [each.arguments for each in came.tool_calls]
        assert float(sent.scores["tsq"]) == float(came.scores["nat_tool_selection_quality"])
        assert sent.duration_s == pytest.approx(came.duration_s)


def test_lost_fields(tmp_path: Path) -> None:
    """Cached tokens, judges' calls, attempts, status, texts of errors and transcripts are lost."""
    out = exported(tmp_path / "out", run_directory(tmp_path / "run", *ALL))
    back, _ = imported(out, tmp_path / "reports")
    bought, tried, lost = back

    assert [None, None] == [each.cached_tokens for each in bought.calls]
    assert ((), ()) == (bought.other_calls, tried.earlier_attempts)
    assert [("server_error", "incomplete")] == [(TRIED.earlier_attempts[0].calls[0].error_kind, tried.calls[0].error_kind)]
    assert ("infra_error", "ok") == (LOST.status, lost.status)
    assert 1 == len(bought.messages)


def test_an_imported_job_is_exported_unchanged(tmp_path: Path) -> None:
    """A job of `nat eval` that is imported and exported has the same events at the same times, and the same scores."""
    given = [*VECTOR, *tool(0, "t", "find_item", "100.6", "100.7")]
    items = [item("shop-0", 1.0, ["find_item"], ["find_item"]), item("shop-1", 0.25)]
    answers = [{"id": id, "generated_answer": f"{id} is done.", "question": "?"} for id in ("shop-0", "shop-1")]
    job = write_job(tmp_path / "job_1", answers, items, given, [{"intermediate_steps": [trace("t", {"item": "lamp"})]}])
    directory, _ = import_run("nat", load_reader("nat")(job), job, None, tmp_path / "reports")
    (out,) = exported(tmp_path / "out", directory).glob("dynamo_evals/*/jobs/*")

    def timed(events: Sequence[Json]) -> list[tuple[str, float, str]]:
        known = [each for each in events if not each["event_type"].startswith("WORKFLOW")]
        return sorted((each["event_type"], float(each["event_timestamp"]), str(each["example_number"])) for each in known)

    assert timed(given) == timed(rows(out / "standardized_data_all.csv"))
    scores = json.loads((out / "tool_selection_quality_output.json").read_text())["eval_output_items"]
    assert [("shop-0", 1.0), ("shop-1", 0.25)] == [(each["id"], each["score"]) for each in scores]
    assert ["shop-0 is done.", "shop-1 is done."] == [
        each["generated_answer"] for each in json.loads((out / "workflow_output.json").read_text())
    ]


@pytest.mark.parametrize(("suites", "experiment"), [(("shop",), "kv"), (("shop", "store"), "kv-shop")])
def test_a_runs_name_is_the_experiment(tmp_path: Path, suites: Sequence[str], experiment: str) -> None:
    """A run with a name is a job of an experiment with that name. If it has several suites, each has its own experiment."""
    directory = run_directory(tmp_path / "run", *ALL, name="kv", suites=dict.fromkeys(suites, run_of(*ALL).suites["shop"]))

    assert [experiment] == [each.name for each in (exported(tmp_path / "out", directory) / "dynamo_evals").iterdir()]
