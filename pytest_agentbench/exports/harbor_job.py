"""Exports runs as job directories of Harbor. Each rollout is a trial, with its result, its reward, and its trajectory in ATIF."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from pytest_agentbench.exports.atif import iso, known, total, trajectory
from pytest_agentbench.exports.files import ChosenRuns, FileNames
from pytest_agentbench.exports.harbor import CONFIG, PHASES, RESULT
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.tables import places

#: Status -> exception in Harbor's result, and the last phase that began.
EXCEPTIONS = {
    "limit": ("AgentTimeoutError", "agent_execution"),
    "agent_error": ("AgentError", "agent_execution"),
    "infra_error": ("InfraError", "environment_setup"),
    "cancelled": ("CancelledError", "agent_execution"),
}


@dataclass
class HarborJob:
    """A job that is being written for one group (suite and variant) of a run, with the counts for its result."""

    folder: Path
    agent: Json
    rewards: defaultdict[str, defaultdict[float, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    exceptions: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    names: FileNames = field(default_factory=FileNames)  # directory names of scenarios
    trials: int = 0
    graded: int = 0


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a job for each group (suite and variant) of each run."""
    for origin in chosen.origins:
        run = chosen.run_of(origin)
        jobs: dict[str, HarborJob] = {}
        for place in places(origin):
            group = place.rollout.key.group
            if place.rollout.kind == "scenario":
                if group not in jobs:
                    jobs[group] = HarborJob(directory / f"{origin.run}-{group}", _agent(run, group))
                _write_trial(jobs[group], place, run)
        for group, job in jobs.items():
            _write_json(job.folder / CONFIG, _configuration(job, run, group))
            _write_json(job.folder / RESULT, _result(job, run, group))


def _agent(run: Run, group: str) -> Json:
    """Returns name, version and model of the agent of a group, in the form that trajectories and trials contain."""
    kind = run.suites[group].agent.get("kind", "unknown") if group in run.suites else "unknown"
    agent = {
        "name": str(kind),
        "version": run.environment.packages.get("pytest-agentbench", "unknown"),
        "model_name": run.model_of(group),
    }
    return known(agent)


def _write_trial(job: HarborJob, place: RolloutPlace, run: Run) -> None:
    rollout = place.rollout
    name = f"{job.names.of(rollout.scenario)}__{rollout.trial}"
    folder = job.folder / name
    (folder / "agent").mkdir(parents=True)
    rewards = {_reward(score, run, rollout): float(value) for score, value in rollout.scores.items()}
    configuration = {"task": {"path": rollout.scenario}, "trial_name": name, "agent": _agent_settings(job)}
    _write_json(folder / CONFIG, configuration)
    _write_json(folder / RESULT, _trial_result(job, place, name, rewards) | {"config": configuration})
    if rewards:
        (folder / "verifier").mkdir()
        _write_json(folder / "verifier" / "reward.json", rewards)
    if steps := trajectory(place, job.agent):
        _write_json(folder / "agent" / "trajectory.json", steps)
    _count(job, rollout, name, rewards)


def _agent_settings(job: HarborJob) -> Json:
    return {name: job.agent[name] for name in ("name", "model_name") if name in job.agent}


def _reward(score: str, run: Run, rollout: Rollout) -> str:
    """Returns the name of the reward that a score becomes: `reward` for the main score, otherwise its own name without `harbor_`.

    Harbor treats higher rewards as better, so a main score for which lower is better keeps its name.
    """
    suite = run.suites.get(rollout.key.group)
    main = suite.scorers[0] if suite and suite.scorers else next(iter(rollout.scores))
    is_reward = score == main and not (suite and suite.scales[main].falling)
    return "reward" if is_reward else score.removeprefix("harbor_")


def _trial_result(job: HarborJob, place: RolloutPlace, name: str, rewards: Json) -> Json:
    rollout, calendar = place.rollout, place.origin.calendar
    good = [call for call in rollout.calls if call.error_kind is None]
    start, end = (calendar.epoch_ns(rollout.session, stamp) for stamp in (rollout.started_ns, rollout.ended_ns))
    times = {"started_at": None if start is None else iso(start), "finished_at": None if end is None else iso(end)}
    kind, last = EXCEPTIONS.get(rollout.status, ("", "verifier"))
    raised = {
        "exception_type": kind,
        "exception_message": rollout.reason,
        "exception_traceback": rollout.log,
        "occurred_at": times["finished_at"] or iso(0),
    }
    used = {
        "n_input_tokens": total(call.prompt_tokens for call in good),
        "n_cache_tokens": total(call.cached_tokens for call in good),
        "n_output_tokens": total(call.completion_tokens for call in good),
    }
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{place.origin.run}/{rollout.key}")),
        "task_name": rollout.scenario,
        "trial_name": name,
        "trial_uri": name,
        "task_id": {"path": rollout.scenario},
        "source": rollout.key.group,
        "task_checksum": str(rollout.content.get("scenario", "")),
        "agent_info": {"name": job.agent["name"], "version": job.agent["version"], "model_info": _model(job)},
        "agent_result": used,
        "verifier_result": {"rewards": rewards} if rewards else None,
        "exception_info": raised if kind else None,
        **times,
        **_phases(times, last),
    }


def _phases(times: Json, last: str) -> Json:
    """Returns phase -> its times. Phases after `last`, the last one that the trial reached, are None.

    The phase of the agent has the times of the rollout. The other phases take no time, because a run does not record them.
    """
    begun = PHASES[: PHASES.index(last) + 1]
    start, end = times["started_at"], times["finished_at"]
    moments = {"agent_execution": times, "verifier": {"started_at": end, "finished_at": end}}
    before = {"started_at": start, "finished_at": start}
    return {phase: moments.get(phase, before) if phase in begun else None for phase in PHASES}


def _model(job: HarborJob) -> Json | None:
    return {"name": job.agent["model_name"], "provider": None} if "model_name" in job.agent else None


def _count(job: HarborJob, rollout: Rollout, name: str, rewards: Json) -> None:
    job.trials += 1
    job.graded += bool(rewards)
    for reward, value in rewards.items():
        job.rewards[reward][value].append(name)
    if rollout.status in EXCEPTIONS:
        job.exceptions[EXCEPTIONS[rollout.status][0]].append(name)


def _configuration(job: HarborJob, run: Run, group: str) -> Json:
    """Returns the content of a job's config.json, as far as the run records it."""
    return {
        "job_name": job.folder.name,
        "n_concurrent_trials": run.concurrency_of(group) or 1,
        "agents": [_agent_settings(job)],
        "datasets": [{"name": group}],
    }


def _result(job: HarborJob, run: Run, group: str) -> Json:
    """Returns the content of a job's result.json.

    The mean is computed as by Harbor: a trial without a reward counts as 0, and all trials have equal weight.
    """
    errors = sum(map(len, job.exceptions.values()))
    counted = {
        "n_trials": job.graded,
        "n_errors": errors,
        "metrics": [{"mean": _mean(job)}] if job.graded else [],
        "reward_stats": {name: {str(value): names for value, names in values.items()} for name, values in job.rewards.items()},
        "exception_stats": job.exceptions,
    }
    words = (job.agent["name"], job.agent.get("model_name"), group)
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, job.folder.name)),
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "n_total_trials": job.trials,
        "stats": {
            "n_completed_trials": job.trials,
            "n_errored_trials": errors,
            "n_cancelled_trials": len(job.exceptions.get("CancelledError", ())),
            "evals": {"__".join(word for word in words if word): counted},
        },
    }


def _mean(job: HarborJob) -> float:
    return sum(value * len(names) for value, names in job.rewards["reward"].items()) / job.trials


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
