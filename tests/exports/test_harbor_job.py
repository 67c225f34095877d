"""`agentbench export --as atif` writes jobs of Harbor with trajectories, which can be imported again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.cli.imported import write as import_run
from pytest_agentbench.exports import load_reader, load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.harbor_job import _reward
from pytest_agentbench.records import Json, Rollout, Scale
from pytest_agentbench.runs.journal import read_journal
from tests.exports.test_harbor import job, trial
from tests.made_runs import run_directory, run_of
from tests.tables.shop import ALL, BOUGHT, LOST, NOON, TRIED


def exported(folder: Path, *rollouts: Rollout) -> Path:
    """Exports a run of the shop. Returns the job's directory."""
    folder.mkdir(parents=True)
    load_writer("atif")(ChosenRuns([run_directory(folder / "reports" / "run", *rollouts)]), folder)
    return folder / "run-shop"


def read(path: Path) -> Json:
    data: Json = json.loads(path.read_text(encoding="utf-8"))
    return data


def imported(folder: Path) -> list[Rollout]:
    """Returns the rollouts that `agentbench import harbor` reads from a job."""
    directory, _ = import_run("harbor", load_reader("harbor")(folder), folder, None, folder.parent / "imported")
    return [*read_journal(directory)]


def test_steps(tmp_path: Path) -> None:
    """Messages become steps, tools and their results belong to the agent's steps, and the steps have tokens, durations and times
    of calls.
    """
    told = read(exported(tmp_path / "out", *ALL) / "shop-0__1/agent/trajectory.json")
    asked, called, answered = told["steps"]

    assert ("ATIF-v1.8", [1, 2, 3], ["user", "agent", "agent"]) == (
        told["schema_version"],
        [step["step_id"] for step in told["steps"]],
        [step["source"] for step in told["steps"]],
    )
    assert {"step_id", "source", "message"} == set(asked)
    assert [{"tool_call_id": "c1", "function_name": "find_item", "arguments": {"item": "lamp"}}] == called["tool_calls"]
    assert [{"source_call_id": "c1", "content": '{"done": true}'}] == called["observation"]["results"]
    assert {"prompt_tokens": 100, "completion_tokens": 3, "cached_tokens": 60}.items() <= called["metrics"].items()
    assert {"ttft_ms": 200.0, "e2e_ms": 300.0}.items() <= answered["metrics"]["extra"].items()
    assert "2023-11-14T22:13:20.500000+00:00" == answered["timestamp"]
    assert {"total_prompt_tokens": 200, "total_completion_tokens": 4, "total_cached_tokens": 120, "total_steps": 3} == told["final_metrics"]


def test_similar_ids(tmp_path: Path) -> None:
    """Scenarios with similar ids have separate folders, and keep their ids."""
    folder = exported(tmp_path / "out", *(replace(BOUGHT, scenario=id) for id in ("a/b", "a b")))

    assert {"a/b", "a b"} == {rollout.scenario for rollout in imported(folder)}


def test_trials(tmp_path: Path) -> None:
    """The main score becomes the reward, and a rollout's failure an exception in the phase in which it was raised."""
    folder = exported(tmp_path / "out", *ALL)
    results = {path.parent.name: read(path) for path in folder.glob("*/result.json")}

    assert {"shop-0__1": {"reward": 1.0}, "shop-1__1": {"reward": 0.0}, "shop-2__1": None} == {
        name: (result["verifier_result"] or {}).get("rewards") for name, result in results.items()
    }
    assert {"exception_type": "InfraError", "exception_message": "no connection"}.items() <= results["shop-2__1"]["exception_info"].items()
    assert results["shop-2__1"]["agent_execution"] is None
    assert not (folder / "shop-2__1/agent/trajectory.json").exists()
    assert {"n_input_tokens": 200, "n_cache_tokens": 120, "n_output_tokens": 4} == results["shop-0__1"]["agent_result"]


def test_the_job_counts(tmp_path: Path) -> None:
    """The job's result has Harbor's mean, in which a trial without a reward is 0, and its trials by reward and by exception."""
    result = read(exported(tmp_path / "out", *ALL) / "result.json")
    (counted,) = result["stats"]["evals"].values()

    assert (3, 3, 1) == (result["n_total_trials"], result["stats"]["n_completed_trials"], result["stats"]["n_errored_trials"])
    assert (2, 1, [{"mean": pytest.approx(1 / 3)}]) == (counted["n_trials"], counted["n_errors"], counted["metrics"])
    assert {"reward": {"1.0": ["shop-0__1"], "0.0": ["shop-1__1"]}} == counted["reward_stats"]
    assert {"InfraError": ["shop-2__1"]} == counted["exception_stats"]


@pytest.mark.parametrize("status", ["ok", "limit", "agent_error", "infra_error", "cancelled"])
def test_status_and_content_come_back(tmp_path: Path, status: str) -> None:
    """After export and import, status, score, answer, tools with arguments, transcript and tokens of calls are equal."""
    scores = BOUGHT.scores if status in ("ok", "limit") else {}
    reason = "" if status == "ok" else "so it was"
    (back,) = imported(exported(tmp_path / "out", replace(BOUGHT, status=status, reason=reason, scores=scores)))

    assert (status, "shop-0", 1) == (back.status, back.scenario, back.trial)
    assert reason in back.reason
    assert [1.0] * len(scores) == [float(score) for score in back.scores.values()]
    assert (BOUGHT.answer, BOUGHT.tools) == (back.answer, back.tools)
    assert [tool.arguments for tool in BOUGHT.tool_calls] == [tool.arguments for tool in back.tool_calls]
    assert [message["role"] for message in BOUGHT.messages] == [message["role"] for message in back.messages]
    assert [(call.prompt_tokens, call.completion_tokens, call.cached_tokens) for call in BOUGHT.calls] == [
        (call.prompt_tokens, call.completion_tokens, call.cached_tokens) for call in back.calls
    ]


def test_times_come_back(tmp_path: Path) -> None:
    """A rollout's start and end come back as those of the agent's phase, to the microsecond."""
    bought, tried = imported(exported(tmp_path / "out", BOUGHT, TRIED))

    assert [1.0, 1.0] == pytest.approx([bought.duration_s, tried.duration_s], abs=2e-6)
    assert NOON + 0.4 == pytest.approx(tried.started_at, abs=2e-6)


def test_lost_fields(tmp_path: Path) -> None:
    """Labels, events, judges' calls, times of calls except their start, and earlier attempts are lost."""
    bought, tried, lost = imported(exported(tmp_path / "out", *ALL))

    assert ((), (), ()) == (bought.expected, bought.other_calls, tried.earlier_attempts)
    assert [(), ()] == [call.chunks for call in bought.calls]
    assert (LOST.status, 0) == (lost.status, lost.started_ns)


def test_invalid_arguments(tmp_path: Path) -> None:
    """Arguments that are not valid JSON are stored as raw text, because a trajectory accepts only objects."""
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"item": '}}]}
    told = read(exported(tmp_path / "out", replace(BOUGHT, messages=(message,))) / "shop-0__1/agent/trajectory.json")

    assert [{"tool_call_id": "c", "function_name": "f", "arguments": {}, "extra": {"raw": '{"item": '}}] == told["steps"][0]["tool_calls"]
    assert "metrics" not in told["steps"][0]


def test_an_imported_job_is_exported_unchanged(tmp_path: Path) -> None:
    """A job of Harbor that is imported and exported has the same trials, rewards and exceptions."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__abc", {"reward": 1.0, "style": 0.5})
    trial(folder, "fix__def", {"reward": 0.0}, raised="AgentTimeoutError")
    directory, _ = import_run("harbor", load_reader("harbor")(folder), folder, None, tmp_path / "reports")
    load_writer("atif")(ChosenRuns([directory]), tmp_path)
    results = [read(path) for path in sorted(tmp_path.glob("harbor-job-*/*/result.json"))]

    assert [("fix", {"reward": 0.0}), ("hello", {"reward": 1.0, "style": 0.5})] == [
        (result["task_name"], result["verifier_result"]["rewards"]) for result in results
    ]
    assert ["AgentTimeoutError", None] == [(result["exception_info"] or {}).get("exception_type") for result in results]


def test_a_main_score_where_lower_is_better() -> None:
    """A main score for which lower is better is not exported as `reward` but under its own name, because a higher reward is better."""
    made = run_of(BOUGHT)
    falling = replace(made, suites={"shop": replace(made.suites["shop"], scales={"tsq": Scale("lower", 0.0, None, declared=True)})})

    assert ("reward", "tsq") == (_reward("tsq", made, BOUGHT), _reward("tsq", falling, BOUGHT))
