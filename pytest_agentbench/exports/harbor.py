"""Imports a job directory of Harbor. It has a directory for each trial, with the trial's result, reward and trajectory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import Source
from pytest_agentbench.exports.atif import Trajectory, read_trajectory
from pytest_agentbench.exports.files import dig, iso_ns, member, members, read_object
from pytest_agentbench.records import EVALUABLE, SHARE, Json, Rollout, Scale, Score, is_score

RESULT, CONFIG = "result.json", "config.json"
PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")

#: Exceptions that determine the status of a trial by themselves -> status, and prefix of the reason.
ENDS = {"CancelledError": ("cancelled", ""), "AgentTimeoutError": ("limit", "time: ")}

#: Exceptions that are not the agent's fault, although they are raised while the agent runs.
NOT_THE_AGENT = frozenset({"ApiUsageLimitError", "AgentAuthenticationError", "ModelNotFoundError"})

STOPWATCH = (
    "Harbor records times of a trial's phases, not of its calls: a rollout's time is that of agent_execution, and calls have only tokens"
)
AVERAGES = (
    "Harbor counts every trial without a reward as 0, and weights all trials equally; "
    "a run leaves out errors that are not the agent's fault, and averages a scenario's trials first"
)
NOTES = (
    "a retry deletes the earlier attempt's directory, so earlier attempts and their errors are not known",
    "up to Harbor 0.24 an agent could write its own reward, and nothing in the results would show it",
    "trajectories have no times of calls and tokens, so there is no TTFT, ITL or throughput of a call",
)


@dataclass(frozen=True)
class HarborTrial:
    """A trial of a Harbor job: its directory, and the content of its JSON files. It becomes a rollout."""

    folder: Path
    config: Json
    result: Json | None  # None: the trial was killed before it wrote its result
    variant: str = "default"

    @property
    def task(self) -> str:
        return str(dig(self.result, "task_name") or self.folder.name.rpartition("__")[0] or self.folder.name)

    @property
    def agent(self) -> Json:
        """Name and model of the agent. Its keyword arguments are left out, because they may contain API keys."""
        info, requested = self._info, member(self.config, "agent", dict, self.folder / CONFIG) or {}
        model = requested.get("model_name") or dig(info, "model_info", "name")
        return {"kind": info.get("name") or requested.get("name") or requested.get("import_path") or "unknown", "model": model}

    @property
    def _info(self) -> Json:
        return member(self.result or {}, "agent_info", dict, self.folder / RESULT) or {}

    @property
    def statistics(self) -> str:
        """The key in the `stats` of the job's result under which Harbor counts this trial: agent, model and data set."""
        info = self._info
        words = info.get("name"), dig(info, "model_info", "name"), dig(self.result, "source") or "adhoc"
        return "__".join(str(word) for word in words if word)

    @property
    def rewards(self) -> dict[str, float]:
        verified = member(self.result or {}, "verifier_result", dict, self.folder / RESULT) or {}
        rewards = member(verified, "rewards", dict, self.folder / RESULT) or {}
        return {f"harbor_{name}": value for name, value in rewards.items()}


def read(path: Path) -> Source:
    """Reads a job directory. Raises ConfigError if it contains no trial."""
    trials = _trials(path)
    config = read_object(path / CONFIG) if (path / CONFIG).is_file() else {}
    result = read_object(path / RESULT) if (path / RESULT).is_file() else {}
    data = _dataset(members(config, "datasets", path / CONFIG))
    planned = result.get("n_total_trials")
    scores = sorted({name for trial in trials for name in trial.rewards}, key=lambda name: (name != "harbor_reward", name))
    agents = {trial.variant: trial.agent for trial in trials}
    notes = list(NOTES)
    return Source(
        suite=re.sub(r"\W", "_", data.name) or "harbor",
        scores=scores or ["harbor_reward"],
        rollouts=_rollouts(trials, scores or ["harbor_reward"], notes),
        stopwatch=STOPWATCH,
        planned=planned if isinstance(planned, int) else len(trials),
        notes=notes,
        dataset=str(data) if data.name else "",
        agents=agents,
        model=", ".join(sorted({str(agent["model"]) for agent in agents.values() if agent["model"]})) or None,
        concurrency=member(config, "n_concurrent_trials", int, path / CONFIG),
        means={variant: dict(means) for variant in agents if (means := [*_means(trials, variant, result, scores)])},
        scales=_scales(trials, scores),
        averages=AVERAGES,
    )


def _scales(trials: Sequence[HarborTrial], scores: Sequence[str]) -> dict[str, Scale]:
    """Returns the scale of each reward. By Harbor's convention rewards are between 0 and 1. Rewards with other values get no scale."""
    values = {score: [trial.rewards[score] for trial in trials if score in trial.rewards] for score in scores}
    return {
        score: SHARE for score, each in values.items() if all(isinstance(value, int | float) and SHARE.contains(value) for value in each)
    }


def _means(trials: Sequence[HarborTrial], variant: str, result: Json, scores: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yields (score, mean that Harbor computed) for a variant, if the job has one mean for all trials of the variant.

    If there is a single reward, Harbor calls its mean `mean`. If there are several, older versions give only the mean of `reward`, and
    later ones the mean of each reward under its name.
    """
    names = {trial.statistics for trial in trials if trial.variant == variant and trial.result}
    counted = dig(result, "stats", "evals", *names) if len(names) == 1 else None
    metrics = dig(counted, "metrics")
    if not isinstance(metrics, list) or len(metrics) != 1 or not isinstance(metrics[0], dict):
        return
    for name, value in metrics[0].items():
        score = scores[0] if name == "mean" and f"harbor_{name}" not in scores else f"harbor_{name}"
        if score in scores and isinstance(value, int | float):
            yield score, value


def _dataset(datasets: Sequence[Json]) -> Path:
    """Returns the path or name of the only data set of a job. Empty if there is none, or more than one."""
    return Path(str(dig(datasets[0], "path") or dig(datasets[0], "name") or "")) if len(datasets) == 1 else Path()


def _trials(path: Path) -> Sequence[HarborTrial]:
    """Returns the trials of a job, sorted by task, variant and start.

    If the job has several agents or models, each pair of agent and model is a variant.
    """
    folders = sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
    if not folders:
        raise ConfigError(f"{path}: contains no trial (a directory with {CONFIG}); pass the directory of a job")
    trials = [HarborTrial(each, read_object(each / CONFIG), _result(each / RESULT)) for each in folders]
    names = {str(trial.agent) for trial in trials if trial.result}
    if len(names) > 1:
        trials = [HarborTrial(each.folder, each.config, each.result, _variant(each.agent)) for each in trials]
    return sorted(trials, key=lambda each: (each.task, each.variant, str(dig(each.result, "started_at") or "~")))


def _result(file: Path) -> Json | None:
    return read_object(file, "task_name", "exception_info", "verifier_result") if file.is_file() else None


def _variant(agent: Json) -> str:
    return re.sub(r"\W+", "_", f"{agent['kind']}_{agent['model'] or ''}".lower()).strip("_")


def _rollouts(trials: Sequence[HarborTrial], scores: Sequence[str], notes: list[str]) -> Iterator[Rollout]:
    numbers: Counter[tuple[str, str]] = Counter()
    without = despite = several = 0
    for trial in trials:
        numbers[trial.task, trial.variant] += 1
        file = trial.folder / "agent" / "trajectory.json"
        done = read_trajectory(file) if file.is_file() else Trajectory()
        without += not file.is_file()
        several += done.several
        rollout = _rollout(trial, numbers[trial.task, trial.variant], done, scores)
        despite += bool(rollout.scores) and dig(trial.result, "exception_info") is not None
        yield rollout
    if without:
        notes.append(f"{without} of {len(trials)} trials have no agent/trajectory.json, so their calls and tools are not known")
    if despite:
        notes.append(f"{despite} trials have a reward although their agent ended with an exception; Harbor counts it, and so does this run")
    if several:
        notes.append(f"{several} steps made several LLM calls, which are one call here")


def _rollout(trial: HarborTrial, number: int, done: Trajectory, scores: Sequence[str]) -> Rollout:
    status, reason = outcome(trial)
    times = member(trial.result or {}, "agent_execution", dict, trial.folder / RESULT) or {}
    start, end = (iso_ns(times.get(name), trial.folder / RESULT) for name in ("started_at", "finished_at"))
    known = start is not None and end is not None
    measured = status in EVALUABLE
    given = _scores(trial) if measured else {}
    return Rollout(
        suite="",
        scenario=trial.task,
        variant=trial.variant,
        trial=number,
        status=status,
        reason=reason,
        started_at=(start or 0) / 1e9,
        started_ns=start or 0 if known else 0,
        ended_ns=end or 0 if known else 0,
        calls=done.calls,
        tool_calls=done.tool_calls,
        answer=done.answer,
        turns=len(done.calls),
        messages=done.messages,
        scores=given,
        score_errors={name: "the verifier gave no such reward" for name in scores if name not in given} if measured else {},
        settings=trial.agent,
        log=str(dig(trial.result, "exception_info", "exception_traceback") or ""),
    )


def _scores(trial: HarborTrial) -> dict[str, Score]:
    for name, value in trial.rewards.items():
        if not isinstance(value, int | float) or not is_score(value):
            raise ConfigError(f"{trial.folder / RESULT}: the reward {name!r} is {value!r}, must be a number")
    return {name: Score(value) for name, value in trial.rewards.items()}


def outcome(trial: HarborTrial) -> tuple[str, str]:
    """Returns (status, reason) of a rollout for a trial. An exception counts as the agent's error if it was raised while the agent ran.

    Harbor also grades agents that ran out of time or failed with an exception. If such a trial has a reward, the reward counts.
    """
    if trial.result is None:
        return "cancelled", f"there is no {RESULT}: the trial was killed"
    raised = trial.result["exception_info"]
    if raised is None:
        return "ok", ""
    kind = str(dig(raised, "exception_type"))
    reason = f"{kind}: {dig(raised, 'exception_message') or ''}".rstrip(": ")
    if kind in ENDS:
        status, what = ENDS[kind]
        return status, f"{what}{reason}"
    if trial.rewards:
        return "ok", reason
    begun = [phase for phase in PHASES if dig(trial.result, phase, "started_at")] or ["no phase"]
    blameless = begun[-1] != "agent_execution" or kind in NOT_THE_AGENT
    return "infra_error" if blameless else "agent_error", f"{reason} (in {begun[-1]})"
