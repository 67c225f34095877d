"""`agentbench import harbor`: trials with their rewards, exceptions and trajectories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli.imported import write
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.harbor import read
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.reports import phrases
from pytest_agentbench.runs.journal import read_journal
from tests.findings import report_of, said

PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


def stamp(seconds: float) -> str:
    return f"2026-11-21T10:00:{seconds:09.6f}Z"


def trial(
    job: Path, name: str, rewards: Json | None, *, raised: str = "", last: str = "verifier", agent: str = "terminus-2", start: float = 0
) -> Path:
    """Writes a trial that reached this phase. Returns its directory."""
    folder = job / name
    (folder / "agent").mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"trial_name": name, "agent": {"name": agent, "model_name": "m", "kwargs": {"key": "x"}}})
    )
    phases = {
        phase: {"started_at": stamp(start + number), "finished_at": stamp(start + number + 0.5)} if number <= PHASES.index(last) else None
        for number, phase in enumerate(PHASES)
    }
    exception = {"exception_type": raised, "exception_message": "oh", "exception_traceback": "Traceback ...", "occurred_at": stamp(9)}
    result = {
        "task_name": name.rpartition("__")[0],
        "trial_name": name,
        "agent_info": {"name": agent, "version": "1", "model_info": None},
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": exception if raised else None,
        "started_at": stamp(start),
        **phases,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def job(folder: Path) -> Path:
    """Writes the files of a job. Returns its directory."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"n_concurrent_trials": 4, "n_attempts": 2, "datasets": [{"path": "data/tb-dev"}]}))
    (folder / "result.json").write_text(json.dumps({"n_total_trials": 3, "stats": {}}))
    return folder


def imported(folder: Path) -> tuple[list[Rollout], Json]:
    directory, run = write("harbor", read(folder), folder, None, folder.parent / "reports")
    return [*read_journal(directory)], plain(run)


@pytest.mark.parametrize(
    ("rewards", "raised", "last", "status", "reason"),
    [
        ({"reward": 1.0}, "", "verifier", "ok", ""),
        ({"reward": 1.0}, "AgentTimeoutError", "verifier", "limit", "time: AgentTimeoutError: oh"),
        ({"reward": 1.0}, "NonZeroAgentExitCodeError", "verifier", "ok", "NonZeroAgentExitCodeError: oh"),
        (None, "RuntimeError", "agent_execution", "agent_error", "RuntimeError: oh (in agent_execution)"),
        (None, "RuntimeError", "environment_setup", "infra_error", "RuntimeError: oh (in environment_setup)"),
        (None, "AgentSetupTimeoutError", "agent_setup", "infra_error", "AgentSetupTimeoutError: oh (in agent_setup)"),
        (None, "RewardFileNotFoundError", "verifier", "infra_error", "RewardFileNotFoundError: oh (in verifier)"),
        (None, "AgentAuthenticationError", "agent_execution", "infra_error", "AgentAuthenticationError: oh (in agent_execution)"),
        (None, "CancelledError", "agent_execution", "cancelled", "CancelledError: oh"),
    ],
)
def test_how_trials_end(tmp_path: Path, rewards: Json | None, raised: str, last: str, status: str, reason: str) -> None:
    """The status follows from the phase of the exception. A reward counts even if the agent ran out of time or failed."""
    trial(job(tmp_path / "job"), "hello__abc", rewards, raised=raised, last=last)

    (rollout,), run = imported(tmp_path / "job")

    assert (status, reason) == (rollout.status, rollout.reason)
    assert ({"harbor_reward": 1.0} if rewards else {}) == rollout.scores
    assert bool(rewards and raised) == any("although their agent ended with an exception" in note for note in run["imported"]["notes"])


def test_a_killed_trial(tmp_path: Path) -> None:
    """A trial without a result was killed: it has no score, and the mean is that of the other trials."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__abc", {"reward": 1.0})
    (trial(folder, "fix__git__def", {"reward": 0.0}) / "result.json").unlink()

    rollouts, run = imported(folder)

    assert [("fix__git", "cancelled"), ("hello", "ok")] == [(each.scenario, each.status) for each in rollouts]
    assert 1.0 == run["suites"]["tb_dev"]["scores"]["harbor_reward"]["mean"]["value"]
    assert {"rollouts": 3, "finished": 2, "not_run": 1} == run["plan"]


def test_attempts_and_times(tmp_path: Path) -> None:
    """Attempts become trials in the order of their start. A rollout's time is the agent's, without building and verifying."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__abc", {"reward": 0.0, "style": 0.5}, start=20)
    trial(folder, "hello__zzz", {"reward": 1.0}, start=10)

    (first, second), run = imported(folder)

    assert ((1, 1.0), (2, 0.0)) == tuple((each.trial, float(each.scores["harbor_reward"])) for each in (first, second))
    assert 0.5 == pytest.approx(first.duration_s)
    assert {"harbor_style": "the verifier gave no such reward"} == first.score_errors
    assert ["harbor_reward", "harbor_style"] == run["suites"]["tb_dev"]["scorers"]
    assert 0.5 == run["suites"]["tb_dev"]["scores"]["harbor_reward"]["mean"]["value"]
    assert 4 == run["settings"]["concurrency"]
    assert "a retry deletes the earlier attempt's directory" in run["imported"]["notes"][0]


def test_agents_are_variants(tmp_path: Path) -> None:
    """A job with several agents becomes a run with several variants. Keyword arguments of agents, which may contain keys, are left out."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__a", {"reward": 1.0}, agent="oracle")
    trial(folder, "hello__b", {"reward": 0.0}, agent="terminus-2")

    rollouts, run = imported(folder)

    assert ["oracle_m", "terminus_2_m"] == [each.variant for each in rollouts]
    assert {"tb_dev-oracle_m": 1.0, "tb_dev-terminus_2_m": 0.0} == {
        name: part["scores"]["harbor_reward"]["mean"]["value"] for name, part in run["suites"].items()
    }
    assert {"kind": "oracle", "model": "m"} == run["suites"]["tb_dev-oracle_m"]["agent"] == rollouts[0].settings


def counted(folder: Path, agent: str, *metrics: Json) -> None:
    """Writes the statistics of a job about one agent."""
    stats = {"evals": {f"{agent}__adhoc": {"n_trials": 1, "n_errors": 1, "metrics": metrics}}}
    (folder / "result.json").write_text(json.dumps({"n_total_trials": 2, "stats": stats}))


def test_harbors_mean_and_ours(tmp_path: Path) -> None:
    """Harbor's mean counts a trial without a reward as 0, and ours leaves it out. Both are reported, and why they differ."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__a", {"reward": 1.0})
    trial(folder, "fix__b", None, raised="RuntimeError", last="environment_setup")
    counted(folder, "terminus-2", {"mean": 0.5})

    _, run = imported(folder)
    (mean,) = run["imported"]["means"]

    assert ("tb_dev", "harbor_reward", 0.5, 1.0) == (mean["suite"], mean["score"], mean["theirs"], mean["ours"])
    assert mean["why"].startswith("Harbor counts every trial without a reward as 0")
    [(told,)] = said(report_of(tmp_path / "reports" / "harbor-job"), phrases.own_mean)
    assert ("tb_dev", "harbor_reward", 0.5, 1.0) == (told.suite, told.score, told.theirs, told.ours)
    assert mean["why"] in (tmp_path / "reports" / "harbor-job" / "report.md").read_text()


def test_means_of_several_rewards(tmp_path: Path) -> None:
    """With several rewards, Harbor's means are identified by name. If a mean equals ours, no reason is given."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__a", {"reward": 1.0, "style": 0.25})
    counted(folder, "terminus-2", {"reward": 1.0, "style": 0.25})

    _, run = imported(folder)

    assert [("harbor_reward", 1.0, 1.0, ""), ("harbor_style", 0.25, 0.25, "")] == [
        (mean["score"], mean["theirs"], mean["ours"], mean["why"]) for mean in run["imported"]["means"]
    ]


def test_means_that_cannot_be_assigned(tmp_path: Path) -> None:
    """If a job has several metrics, or none for an agent, none of Harbor's means is shown for a reward."""
    folder = job(tmp_path / "job")
    trial(folder, "hello__a", {"reward": 1.0})
    counted(folder, "terminus-2", {"mean": 1.0}, {"max": 1.0})
    _, several = imported(folder)
    counted(folder, "oracle", {"mean": 1.0})
    _, another = imported(folder)

    assert [] == several["imported"]["means"] == another["imported"]["means"]


TRAJECTORY: Json = {
    "schema_version": "ATIF-v1.8",
    "agent": {"name": "terminus-2", "model_name": "hosted_vllm/m"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Write a file.", "timestamp": stamp(1)},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I shall.",
            "timestamp": stamp(2.25),
            "tool_calls": [{"tool_call_id": "c1", "function_name": "bash_command", "arguments": {"keystrokes": "ls"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "a.txt"}]},
            "metrics": {"prompt_tokens": 90, "completion_tokens": 21, "cached_tokens": 64},
        },
        {"step_id": 3, "source": "agent", "message": "Done.", "timestamp": stamp(2.5), "llm_call_count": 2, "metrics": None},
        {"step_id": 4, "source": "agent", "message": "Bye.", "llm_call_count": 0},
    ],
}


def test_trajectories(tmp_path: Path) -> None:
    """A trajectory has calls with tokens but without times, tools with arguments, the transcript and the answer."""
    folder = trial(job(tmp_path / "job"), "hello__abc", {"reward": 1.0})
    (folder / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY))

    (rollout,), run = imported(tmp_path / "job")

    assert [(90, 21, 64, None), (None, None, None, None)] == [
        (each.prompt_tokens, each.completion_tokens, each.cached_tokens, each.sent_ns) for each in rollout.calls
    ]
    assert [("bash_command", {"keystrokes": "ls"}, 1)] == [(each.name, each.arguments, each.turn) for each in rollout.tool_calls]
    assert ["user", "assistant", "tool", "assistant", "assistant"] == [each["role"] for each in rollout.messages]
    assert "Bye." == rollout.answer
    performance = run["performance"]
    assert (2, 21, None, 64 / 90) == (
        performance["calls"],
        performance["output_tokens"],
        performance["e2e_ms"],
        performance["prefix_cache_hit_ratio"],
    )
    assert run["stopwatch"]["verdict"] is performance["split"] is None
    assert "1 steps made several LLM calls" in "\n".join(run["imported"]["notes"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema_version": "ATOF-v1"}, "schema_version is 'ATOF-v1', must be ATIF-..., such as ATIF-v1.8"),
        ({"steps": {}}, "steps must be an array of objects"),
        ({"steps": [{"source": "agent", "timestamp": "noon"}]}, "'noon' must be an ISO 8601 time, such as 2026-03-05T12:00:00Z"),
    ],
)
def test_a_broken_trajectory(tmp_path: Path, change: Json, why: str) -> None:
    """An invalid trajectory is named with the problem, and no run is written."""
    folder = trial(job(tmp_path / "job"), "hello__abc", {"reward": 1.0})
    (folder / "agent" / "trajectory.json").write_text(json.dumps({**TRAJECTORY, **change}))

    with pytest.raises(ConfigError) as raised:
        imported(tmp_path / "job")

    assert f"{folder / 'agent' / 'trajectory.json'}: {why}" == str(raised.value)
    assert [] == [*(tmp_path / "reports").glob("harbor*")]


@pytest.mark.parametrize(("reward", "shown"), [("high", "'high'"), (float("nan"), "nan")])
def test_an_invalid_reward(tmp_path: Path, reward: Any, shown: str) -> None:
    """A reward that is not a finite number is refused with the file."""
    trial(job(tmp_path / "job"), "hello__abc", {"reward": reward})

    with pytest.raises(ConfigError, match=rf"hello__abc/result\.json: the reward 'harbor_reward' is {shown}, must be a number"):
        imported(tmp_path / "job")


def test_a_directory_without_trials(tmp_path: Path) -> None:
    """A directory without trials is refused."""
    with pytest.raises(ConfigError, match="contains no trial"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metrics": {"prompt_tokens": "12"}}, "prompt_tokens is a text, must be a whole number"),
        ({"tool_calls": [None]}, "tool_calls contains null, must be an array of objects"),
        ({"tool_calls": 3}, "tool_calls is a whole number, must be an array"),
        ({"observation": {"results": ["done"]}}, "results contains a text, must be an array of objects"),
        ({"source": ["agent"]}, "source is an array, must be a text"),
        ({"message": ["hello"]}, "message contains a text, must be an array of objects"),
        ({"llm_call_count": "2"}, "llm_call_count is a text, must be a whole number"),
    ],
)
def test_a_trajectory_of_another_form(tmp_path: Path, changes: Json, sentence: str) -> None:
    """A value in a trajectory with the wrong type is an error with the file and the key."""
    step = {"step_id": 1, "source": "agent", "message": "Done.", **changes}
    file = trial(job(tmp_path / "job"), "a__1", {"reward": 1.0}) / "agent" / "trajectory.json"
    file.write_text(json.dumps({"schema_version": "ATIF-v1.8", "steps": [step]}))

    with pytest.raises(ConfigError, match=rf"a__1/agent/trajectory\.json: {sentence}"):
        imported(tmp_path / "job")


@pytest.mark.parametrize(
    ("file", "changes", "sentence"),
    [
        ("a__1/result.json", {"agent_info": "terminus"}, "agent_info is a text, must be an object"),
        ("a__1/result.json", {"verifier_result": {"rewards": 1}}, "rewards is a whole number, must be an object"),
        ("a__1/config.json", {"agent": []}, "agent is an array, must be an object"),
        ("config.json", {"datasets": {"path": "x"}}, "datasets is an object, must be an array"),
    ],
)
def test_a_result_of_another_form(tmp_path: Path, file: str, changes: Json, sentence: str) -> None:
    """A value in a job's or trial's files with the wrong type is an error with the file and the key."""
    trial(job(tmp_path / "job"), "a__1", {"reward": 1.0})
    path = tmp_path / "job" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    with pytest.raises(ConfigError, match=rf"{file}: {sentence}"):
        imported(tmp_path / "job")
