"""Baselines: runs that others are compared with, as run directories or as slim files. They are found, read and written here, and a run
is made one if it is fit.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial, samples, trial_of
from pytest_agentbench.gate.verdict import ENOUGH, INFRA_ERRORS
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_file import bounded_json
from pytest_agentbench.metrics.stopwatch import SATURATED
from pytest_agentbench.records import UNDECLARED, Json, Scale, suite_of
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.run_file import Run, find_run, read_run
from pytest_agentbench.stats.quantiles import normal_quantile

SCHEMA = "agentbench-baseline/5"  # docs/gates.md describes it
FOLDER = "baselines"  # beside the run directories; the only part of reports/ that is committed


def default_baseline(suite: str, reports: Path) -> Path:
    """Where a suite's promoted baseline lies."""
    return reports / FOLDER / f"{suite}.jsonl"


def find_baseline(name: str, reports: Path) -> Path:
    """The file or run directory that a name means; raises ConfigError with the known runs when there is none."""
    return path if (path := Path(name)).is_file() and path.suffix == ".jsonl" else find_run(name, reports)


def read_evidence(path: Path) -> Evidence:
    """The evidence in a baseline file or a run directory, one record in memory at a time; raises ConfigError."""
    if path.is_dir():
        check_journal(path)
        trials = (trial_of(rollout) for rollout in read_journal(path) if rollout.kind == "scenario")
        return Evidence.of(RunFacts.of(read_run(path)), trials)
    try:
        lines = _lines(path)
        header = next(lines, {})
        refuse_another_schema(path, header)
        return Evidence.of(_facts_in(header), (codec.read(Trial, each) for each in lines))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is no baseline: {error}; `agentbench baseline promote RUN` writes one") from error


def _facts_in(header: Json) -> RunFacts:
    """Returns what the first line of a baseline file says of its run; raises ValueError or KeyError."""
    about = {name: header.pop(name) for name in ("schema", "suite", "replaces", "reason")}
    if about["schema"] != SCHEMA or not about["suite"]:
        raise ValueError(f"the first line is no header of schema {SCHEMA}")
    return codec.read(RunFacts, header)


def refuse_another_schema(path: Path, header: Json) -> None:
    """Raises ConfigError for a baseline of another version, with what makes it again."""
    schema, suite = header.get("schema"), header.get("suite")
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith(SCHEMA.partition("/")[0]):
        again = f"`pytest -m {suite}`, then `agentbench baseline promote --suite {suite} --to {path}`"
        raise ConfigError(f"{path} is of schema {schema}, and this version reads {SCHEMA}; {again} make it again")


def _lines(path: Path) -> Iterator[Json]:
    with path.open("rb") as file:
        yield from map(bounded_json, file)


def write_baseline(evidence: Evidence, suite: str, path: Path, replaces: str | None = None, reason: str = "") -> Path:
    """Writes the baseline of a suite with all its variants, as a whole or not at all: a header, and a line for each rollout.

    `replaces` is the run that was the baseline before, `reason` why a lower one takes its place; both are for people.
    """
    header = {"schema": SCHEMA, "suite": suite, "replaces": replaces, "reason": reason, **codec.plain(evidence.facts)}
    trials = (trial for trials in evidence.groups.values() for trial in trials if trial.suite == suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, "".join(json.dumps(codec.plain(line), ensure_ascii=False) + "\n" for line in (header, *trials)))


ROUNDING = 1e-9  # a mean that fell by less did not fall

#: (group, score) -> its mean over scenarios, and how many there are.
MeansByScore = Mapping[tuple[str, str], tuple[float, int]]


@dataclass(frozen=True)
class ScoreChange:
    """One score of one suite under one variant: its mean over scenarios, before and now."""

    group: str
    score: str
    was: float | None  # None where the old baseline has no such score, or there is none
    now: float | None  # None where the run has no such score
    scenarios: int  # of the run
    scale: Scale = UNDECLARED  # of the run, or else of the old baseline

    @property
    def worse(self) -> bool:
        if self.was is None or self.now is None:
            return self.was is not None
        return self.scale.loss(self.now) - self.scale.loss(self.was) > ROUNDING


@dataclass(frozen=True)
class Promotion:
    """A run that is fit to be a suite's baseline, and the file that it goes to."""

    suite: str
    path: Path
    new: Evidence
    old: Evidence | None

    @property
    def changes(self) -> list[ScoreChange]:
        now, was = _means(self.new, self.suite), _means(self.old, self.suite) if self.old else {}
        return [self._change(group, score, was, now) for group, score in {**now, **was}]

    def _change(self, group: str, score: str, was: MeansByScore, now: MeansByScore) -> ScoreChange:
        (before, _), (after, scenarios) = (means.get((group, score), (None, 0)) for means in (was, now))
        known = self.old if self.old and score not in self.new.facts.scales.get(group, {}) else self.new
        return ScoreChange(group, score, before, after, scenarios, known.scale(group, score))

    def write(self, reason: str) -> None:
        write_baseline(self.new, self.suite, self.path, self.old.facts.run if self.old else None, reason)


def check_reason(plans: Iterable[Promotion], reason: str) -> None:
    """Raises ConfigError where something gets worse and nobody says why: many small steps down are a large one."""
    for plan in plans:
        if not reason and (worse := [each for each in plan.changes if each.worse]):
            what = ", ".join(f"{each.group} {each.score}" for each in worse)
            raise ConfigError(f"{plan.path} would become worse in {what}; --reason TEXT says why that is right, and is kept in the file")


def plan_promotion(run: Run, evidence: Evidence, suite: str, path: Path) -> Promotion:
    """Raises ConfigError for a run that is no basis, and for a file in its place that is no baseline."""
    if reasons := [*unfit_reasons(run, evidence, suite)]:
        raise ConfigError(f"{run.id} is no baseline for {suite}: {'; '.join(reasons)}")
    return Promotion(suite, path, evidence, read_evidence(path) if path.exists() else None)


def unfit_reasons(run: Run, evidence: Evidence, suite: str) -> Iterator[str]:
    """Why a run says too little about a suite to be a baseline, or to suggest anything."""
    trials = _of(evidence, suite)
    statuses = Counter(trial.status for trial in trials)
    if run.backend.failure:
        yield run.backend.failure
    if left := run.plan.not_run + statuses["cancelled"]:
        resume = f" (go on with {run.resume})" if run.resume else ""
        yield f"{left} of {run.plan.rollouts} planned rollouts were not run{resume}"
    if not statuses["ok"] + statuses["limit"]:
        yield "no rollout was evaluable"
    elif statuses["infra_error"] > INFRA_ERRORS * len(trials):
        yield f"{statuses['infra_error']} of {len(trials)} rollouts ended as infra_error, more than {INFRA_ERRORS * 100:g} %"
    for score, count in Counter(score for trial in trials for score in trial.unscored).items():
        yield f"{count} of its {score} scores are missing: the scorer failed"


def best_run_warnings(run: Run, suite: str, others: Sequence[Run]) -> Iterator[str]:
    """A sentence for each main score of which a run has the best of several runs of its setup: the next ones will be less lucky."""
    for group, part in run.suites.items():
        score = part.main_score
        if suite != suite_of(group, part.variant) or (mine := _mean_of(run, group, score)) is None:
            continue
        known = [mean for each in others if (mean := _mean_of(each, group, score)) is not None]
        loss = part.scales[score].loss
        beaten = all(loss(mine) < loss(mean) - ROUNDING for mean in known)
        if known and beaten:
            count = len(known) + 1
            excess = normal_quantile((count - 0.375) / (count + 0.25))  # Blom 1958: of the best of so many alike
            yield (
                f"{group} {score}.mean is the best of {count} runs of this setup, and of so many equal runs the best is lucky "
                f"by {excess:.1f} standard deviations: against it later runs fail although nothing has changed; "
                "promote by date, or one with more trials"
            )


def _mean_of(run: Run, group: str, score: str) -> float | None:
    means = run.suites[group].scores.get(score) if group in run.suites else None
    return means.mean.value if means and means.mean else None


def baseline_warnings(run: Run, evidence: Evidence, suite: str) -> Iterator[str]:
    """What makes a run a poor baseline, though it is one; a group is named where it is not the suite itself."""
    if evidence.facts.stopwatch == SATURATED:
        yield "the client was saturated: rules about timings will be INCONCLUSIVE against this baseline"
    for group, trials in evidence.groups.items():
        size, ran = evidence.facts.scenarios.get(group, 0), len({trial.scenario for trial in trials})
        if trials[0].suite == suite and ran < ENOUGH * size:
            of_group = "" if group == suite else f"{group}: "
            yield f"{of_group}{ran} of {size} scenarios ran: whole runs will be INCONCLUSIVE against this baseline"
    if run.environment.git and run.environment.git.dirty:
        yield "the run's working tree had changes that are in no commit"


def _of(evidence: Evidence, suite: str) -> Sequence[Trial]:
    return [trial for trials in evidence.groups.values() for trial in trials if trial.suite == suite]


def _means(evidence: Evidence, suite: str) -> dict[tuple[str, str], tuple[float, int]]:
    """(group, score) -> its mean over scenarios as rules see it, and how many there are."""
    by_score = {}
    for group, trials in evidence.groups.items():
        if trials[0].suite == suite:
            for score in dict.fromkeys(name for trial in trials for name in trial.scores):
                means = [each.mean for each in samples(trials, score, evidence.scale(group, score)).values() if each.scores]
                by_score[group, score] = math.fsum(means) / len(means), len(means)
    return by_score
