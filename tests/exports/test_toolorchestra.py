"""`agentbench import toolorchestra`: files of tasks, and information that they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli.imported import write
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.toolorchestra import SCORE, read
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.journal import read_journal

SEARCH = [[{"name": "search", "arguments": {"model": "search-1"}}]]
ANSWER = [[{"name": "answer", "arguments": {"model": "answer-1"}}]]
RESPONSES = {
    "turn_0_response": [{"tool": "search", "search_results_data": []}],
    "turn_1_response": [{"tool": "answer", "correctness": True, "model": "openai/gpt-oss-120b", "pred": "42"}],
}

LOG = """\
[PROFILE] 2026-11-21 10:00:00 task=- thread=1 type=run_start model_name=Qwen/Qwen3-8B concurrency=48
[HLE_TRIAL_COMPLETE] ts_iso=2026-11-21T10:05:00 ts_unix=1763719500.000 task_id=right job_id=hle:right:00000000 status=done correct=True
[HLE_TRIAL_COMPLETE] ts_iso=2026-11-21T10:06:00 ts_unix=1763719560.000 task_id=lost job_id=hle:lost:00000000 status=done correct=False
"""


def task(folder: Path, id: str, calls: list[Any], correct: bool = False, status: str = "done", **keys: Any) -> None:
    """Writes the result of a task, in which `answer` is the label."""
    data: Json = {"id": id, "problem": "How many?", "all_tool_calls": calls, "all_tool_responses": {}, "answer": "the label"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{id}.json").write_text(json.dumps({**data, "all_message_responses": {}, "correct": correct, "status": status, **keys}))


def imported(folder: Path) -> tuple[dict[str, Rollout], Json]:
    directory, run = write("toolorchestra", read(folder), folder, None, folder.parent / "reports")
    return {each.scenario: each for each in read_journal(directory)}, plain(run)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run with each way in which a task can end."""
    folder = tmp_path / "run" / "outputs"
    task(folder, "right", [SEARCH, ANSWER], True, all_tool_responses=RESPONSES)
    task(folder, "wrong", ["342 invalid tool calls []", ["350 invalid tool calls [x]"], ANSWER])
    task(folder, "rounds", [SEARCH, SEARCH])
    task(folder, "tool", [SEARCH], status="error", error_type="RateLimitError")
    task(folder, "silent", [])
    (tmp_path / "run" / "model_config.json").write_text('{"Qwen/Qwen3-8B": []}')
    return tmp_path / "run"


def test_how_tasks_end(results: Path) -> None:
    """A tool's error and a model that never answered are infra_errors. A task that used all rounds is a limit with its score."""
    rollouts, run = imported(results)

    assert {
        "right": ("ok", ""),
        "wrong": ("ok", ""),
        "rounds": ("limit", "turns: no answer after 2 rounds in which the model answered"),
        "tool": ("infra_error", "a tool failed: RateLimitError"),
        "silent": ("infra_error", "the model answered in no round"),
    } == {name: (each.status, each.reason) for name, each in rollouts.items()}
    assert {"right": 1.0, "wrong": 0.0, "rounds": 0.0} == {
        name: float(each.scores[SCORE]) for name, each in rollouts.items() if each.scores
    }
    assert 1 / 3 == pytest.approx(run["suites"]["hle"]["scores"][SCORE]["mean"]["value"])


def test_answers_and_tools(results: Path) -> None:
    """The answer is the prediction and not the label, which the file calls `answer`. Invalid calls are recorded as such."""
    rollouts, _ = imported(results)

    assert ("42", "") == (rollouts["right"].answer, rollouts["wrong"].answer)
    assert [("search", {"model": "search-1"}, 1), ("answer", {"model": "answer-1"}, 2)] == [
        (each.name, each.arguments, each.turn) for each in rollouts["right"].tool_calls
    ]
    assert [("", "invalid_arguments", 2), ("answer", None, 3)] == [
        (each.name, each.problem, each.turn) for each in rollouts["wrong"].tool_calls
    ]


def test_unknown_fields(results: Path) -> None:
    """Without logs and usage, times, tokens and concurrency are unknown, and notes say so."""
    rollouts, run = imported(results)

    assert all(each.ended_ns == 0 and each.calls == () for each in rollouts.values())
    assert (None, None, None) == (run["stopwatch"]["verdict"], run["settings"]["concurrency"], run["backend"]["served_model"])
    notes = "\n".join(run["imported"]["notes"])
    assert "the results have no times" in notes
    assert "a task that was aborted leaves no file" in notes
    assert "the requested concurrency is not recorded" in notes


def test_logs_and_counts(results: Path) -> None:
    """A log contains the concurrency and tasks without a file.

    Usage gives totals of tokens; cached ones are unknown if they were inferred.
    """
    (results / "eval_driver.log").write_text(LOG)
    usage = {"ts_unix": 1.0, "model": "Qwen/Qwen3-8B", "prompt_tokens": 800, "completion_tokens": 20, "cached_tokens": 512}
    lines = [usage, {**usage, "cached_tokens": 0, "cached_tokens_inferred": True}]
    (results / "orchestrator_usage.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    run = imported(results)[1]

    assert (48, "Qwen/Qwen3-8B") == (run["settings"]["concurrency"], run["backend"]["served_model"])
    assert {"calls": 2, "prompt_tokens": 1600, "completion_tokens": 40, "cached_tokens": None} == run["imported"]["facts"]
    notes = "\n".join(run["imported"]["notes"])
    assert "according to the logs, 1 tasks ended that have no file, such as lost" in notes
    assert "for 1 of them the server did not say what was cached" in notes


def test_invalid_runs(results: Path) -> None:
    """A directory without results, with results of two runs, or with damaged files is refused by name."""
    with pytest.raises(ConfigError, match="contains no result of a task"):
        read(results.parent / "reports")
    task(results / "outputs", "odd", [ANSWER], correct="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"odd\.json: the key 'correct' is 'yes', must be true or false"):
        imported(results)
    task(results / "other", "a", [ANSWER])
    with pytest.raises(ConfigError, match="2 directories in it have results, but a run has one"):
        read(results)
    (results / "other" / "a.json").write_text('{"id": "a", ')
    with pytest.raises(ConfigError, match=r"other/a\.json: not valid JSON"):
        read(results / "other")
    assert [] == [*(results.parent / "reports").glob("tool*")]


def test_a_named_directory_with_tasks(results: Path) -> None:
    """If the named directory contains tasks, they are the run. A note names directories below that were left out."""
    task(results / "outputs" / "older", "a", [ANSWER])

    source = read(results / "outputs")

    assert "left out: 1 directories below have results of their own, such as older" in source.notes
    assert "a" not in [rollout.scenario for rollout in source.rollouts]


@pytest.mark.parametrize("keys", [{"calls": 3}, {"calls": [], "all_tool_responses": {"turn_0": None, "turn_1": [3]}}])
def test_a_task_of_another_form(tmp_path: Path, keys: Json) -> None:
    """A value with the wrong type is an error with the file."""
    task(tmp_path / "run", "odd", **keys)

    with pytest.raises(ConfigError, match=r"odd\.json: \w+ (is|contains) a whole number"):
        imported(tmp_path / "run")
