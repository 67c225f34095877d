"""Baselines: runs that other runs are compared with, stored as run directories or as small JSON Lines files.

This module finds, reads and writes them, and promotes a run to a baseline if it is complete enough.
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
from pytest_agentbench.gate.usable_numbers import missing_scores
from pytest_agentbench.gate.verdict import ENOUGH, INFRA_ERRORS
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import bounded_json
from pytest_agentbench.metrics.stopwatch import SATURATED
from pytest_agentbench.records import UNDECLARED, Json, Scale, suite_of
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.run_file import Run, find_run, read_run
from pytest_agentbench.stats.quantiles import normal_quantile

SCHEMA = "agentbench-baseline/5"  # docs/compare/baselines.md describes it
FOLDER = "baselines"  # folder beside the run directories, the only part of reports/ that is committed


def default_baseline(suite: str, reports: Path) -> Path:
    """Returns the path of a suite's promoted baseline."""
    return reports / FOLDER / f"{suite}.jsonl"


def find_baseline(name: str, reports: Path) -> Path:
    """Returns the baseline file or run directory with this name. Raises ConfigError with the known runs if none has it."""
    return path if (path := Path(name)).is_file() and path.suffix == ".jsonl" else find_run(name, reports)


def read_evidence(path: Path) -> Evidence:
    """Reads the data that gates use from a baseline file or a run directory. Raises ConfigError if it cannot be read."""
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
        raise ConfigError(f"{path} is not a baseline: {error}; `agentbench baseline promote RUN` writes one") from error


def _facts_in(header: Json) -> RunFacts:
    """Reads the facts about the run from the first line of a baseline file. Raises ValueError or KeyError."""
    about = {name: header.pop(name) for name in ("schema", "suite", "replaces", "reason")}
    if about["schema"] != SCHEMA or not about["suite"]:
        raise ValueError(f"the first line is not a header of schema {SCHEMA}")
    return codec.read(RunFacts, header)


def refuse_another_schema(path: Path, header: Json) -> None:
    """Raises ConfigError with the commands that make the baseline again if it was written by another version."""
    schema, suite = header.get("schema"), header.get("suite")
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith(SCHEMA.partition("/")[0]):
        again = f"`pytest -m {suite}`, then `agentbench baseline promote --suite {suite} --to {path}`"
        raise ConfigError(f"{path} has schema {schema}, but this version reads only {SCHEMA}; to make it again, run {again}")


def _lines(path: Path) -> Iterator[Json]:
    with path.open("rb") as file:
        yield from map(bounded_json, file)


def write_baseline(evidence: Evidence, suite: str, path: Path, replaces: str | None = None, reason: str = "") -> Path:
    """Writes the baseline of a suite with all its variants: a header, then a line for each rollout. The write is atomic.

    `replaces` is the run that was the baseline before, `reason` why a worse one takes its place. Both are only for people to read.
    """
    header = {"schema": SCHEMA, "suite": suite, "replaces": replaces, "reason": reason, **codec.plain(evidence.facts)}
    trials = (trial for trials in evidence.groups.values() for trial in trials if trial.suite == suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, "".join(json.dumps(codec.plain(line), ensure_ascii=False) + "\n" for line in (header, *trials)))


ROUNDING = 1e-9  # a change of a mean below this is a rounding error

#: (group, score) -> mean over scenarios, number of scenarios.
MeansByScore = Mapping[tuple[str, str], tuple[float, int]]


@dataclass(frozen=True)
class ScoreChange:
    """The mean over scenarios of one score of one group (suite, or `suite-variant`), in the old and in the new baseline."""

    group: str
    score: str
    was: float | None  # None if the old baseline is missing or lacks the score
    now: float | None  # None if the run lacks the score
    scenarios: int  # number of scenarios in the run
    scale: Scale = UNDECLARED  # scale of the score in the run or, if that lacks it, in the old baseline

    @property
    def worse(self) -> bool:
        if self.was is None or self.now is None:
            return self.was is not None
        return self.scale.loss(self.now) - self.scale.loss(self.was) > ROUNDING


@dataclass(frozen=True)
class Promotion:
    """A planned promotion: the run that is to become a suite's baseline, and the file that it will be written to."""

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


def check_reason(plans: Iterable[Promotion], run: Run, reason: str) -> None:
    """Raises ConfigError if a baseline is doubtful and no reason is given.

    It is doubtful if a mean gets worse (otherwise many small drops could add up to a large one), if scores of the old baseline are missing,
    or if later runs could not be worse than it.
    """
    for plan in plans if not reason else ():
        lost = ", ".join(f"{each.group} {each.score}" for each in plan.changes if each.worse and each.now is None)
        worse = ", ".join(f"{each.group} {each.score}" for each in plan.changes if each.worse and each.now is not None)
        doubts = [
            f"the new baseline {plan.path} is worse than the old one for {worse}" if worse else "",
            f"the new baseline {plan.path} has no results of {lost}, which the old one has" if lost else "",
            *_useless(plan, run),
        ]
        if doubts := [*filter(None, doubts)]:
            raise ConfigError(f"{'; '.join(doubts)}; if that is intended, give the reason with --reason TEXT")


def _useless(plan: Promotion, run: Run) -> Iterator[str]:
    """Yields why no later run could be worse than the new baseline."""
    if run.tests.failed and not run.tests.passed:
        yield f"{run.id} is a poor baseline: all {run.tests.failed} tests failed, so almost any later run passes against it"
        return
    for change in plan.changes:
        part = run.suites.get(change.group)
        if part and change.score == part.main_score and change.now is not None and change.now == change.scale.worst:
            yield f"{run.id} is a poor baseline: {change.group} {change.score} is {change.now:g}, and no later run can be worse"


def plan_promotion(run: Run, evidence: Evidence, suite: str, path: Path) -> Promotion:
    """Plans a promotion. Raises ConfigError if the run is not fit to be a baseline, or if the file at `path` is not a baseline."""
    arms = ["it compares arms (--agentbench-ab), and later runs do not have these; promote a run without arms"] if run.ab else []
    if reasons := [*arms, *unfit_reasons(run, evidence, suite)]:
        raise ConfigError(f"{run.id} cannot be a baseline for {suite}: {'; '.join(reasons)}")
    return Promotion(suite, path, evidence, read_evidence(path) if path.exists() else None)


def unfit_reasons(run: Run, evidence: Evidence, suite: str) -> Iterator[str]:
    """Yields the reasons why a run can neither be a baseline of a suite nor be used to suggest thresholds."""
    trials = _of(evidence, suite)
    statuses = Counter(trial.status for trial in trials)
    if run.backend.is_recorded:
        yield "its answers come from a recording, so nothing new was measured"
    if run.backend.failure:
        yield run.backend.failure
    if left := run.plan.not_run + statuses["cancelled"]:
        resume = f" (resume with {run.resume})" if run.resume else ""
        yield f"{left} of {run.plan.rollouts} planned rollouts were not run{resume}"
    if not statuses["ok"] + statuses["limit"]:
        yield "no rollout ended as ok or limit"
    elif statuses["infra_error"] > INFRA_ERRORS * len(trials):
        yield f"{statuses['infra_error']} of {len(trials)} rollouts ended as infra_error, more than {INFRA_ERRORS * 100:g} %"
    for score, count in Counter(score for trial in trials for score in trial.unscored).items():
        yield missing_scores(count, score)


def best_run_warnings(run: Run, suite: str, others: Sequence[Run]) -> Iterator[str]:
    """Yields a warning for each main score in which this run is the best of several runs of its setup.

    Its score is probably good by luck, so later runs may fail against this baseline without any change.
    """
    for group, part in run.suites.items():
        score = part.main_score
        if suite != suite_of(group, part.variant) or (mine := _mean_of(run, group, score)) is None:
            continue
        known = [mean for each in others if (mean := _mean_of(each, group, score)) is not None]
        loss = part.scales[score].loss
        beaten = all(loss(mine) < loss(mean) - ROUNDING for mean in known)
        if known and beaten:
            count = len(known) + 1
            excess = normal_quantile((count - 0.375) / (count + 0.25))  # Blom 1958: expected maximum of so many equal runs
            yield (
                f"{group} {score}.mean is the best of {count} runs of this setup, probably by luck "
                f"(about {excess:.1f} standard deviations), so later runs may fail without any change; "
                "choose a run by its date, or one with more trials"
            )


def _mean_of(run: Run, group: str, score: str) -> float | None:
    means = run.suites[group].scores.get(score) if group in run.suites else None
    return means.mean.value if means and means.mean else None


def baseline_warnings(run: Run, evidence: Evidence, suite: str) -> Iterator[str]:
    """Yields warnings about a run that can be a baseline but is a poor one. A warning about a variant of the suite names it."""
    if evidence.facts.stopwatch == SATURATED:
        yield "the client was saturated: rules about timings will be INCONCLUSIVE against this baseline"
    if run.tests.failed:
        yield f"{run.tests.failed} of {run.tests.failed + run.tests.passed} tests of the run failed"
    for group, trials in evidence.groups.items():
        size, ran = evidence.facts.scenarios.get(group, 0), len({trial.scenario for trial in trials})
        if trials[0].suite == suite and ran < ENOUGH * size:
            of_group = "" if group == suite else f"{group}: "
            yield f"{of_group}{ran} of {size} scenarios ran: runs of the whole suite will be INCONCLUSIVE against this baseline"
    if run.environment.git and run.environment.git.dirty:
        yield "the working tree of the run had uncommitted changes, so its commit does not identify the code"


def _of(evidence: Evidence, suite: str) -> Sequence[Trial]:
    return [trial for trials in evidence.groups.values() for trial in trials if trial.suite == suite]


def _means(evidence: Evidence, suite: str) -> dict[tuple[str, str], tuple[float, int]]:
    """Returns (group, score) -> mean over scenarios, as rules compute it, and number of scenarios."""
    by_score = {}
    for group, trials in evidence.groups.items():
        if trials[0].suite == suite:
            for score in dict.fromkeys(name for trial in trials for name in trial.scores):
                means = [each.mean for each in samples(trials, score, evidence.scale(group, score)).values() if each.scores]
                by_score[group, score] = math.fsum(means) / len(means), len(means)
    return by_score
