"""Computes the scores of a stored run again, without a backend. Writes a new run directory next to the old one, which is not changed.

A group here is a suite under one variant.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from datetime import datetime
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.records import EVALUABLE, Rollout, Scale, scale_in, suite_of
from pytest_agentbench.rollouts.scores import no_judge, scored, scorer_of, wants_judge
from pytest_agentbench.runs.builder import RunReader, build_run
from pytest_agentbench.runs.directory import PRIVATE, discard
from pytest_agentbench.runs.journal import FILE, check_journal, read_journal, record_line
from pytest_agentbench.runs.message_file import copy_messages, with_changed_ids
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.provenance import RunIdentity
from pytest_agentbench.runs.results import ArmsCompared, PlannedSuite, ScoredBy, SuiteFacts, SuiteResult
from pytest_agentbench.runs.run_file import Rescored, Run, SessionFacts, redacted, write_run
from pytest_agentbench.scorers import Scorer, declared_scale
from pytest_agentbench.stats.pass_rates import PassThreshold
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.hashes import digest, mixed_scoring, score_hashes
from pytest_agentbench.suites.suite import SUITE_FILE, Scenario, Suite, public_of, question, score_name


class RescoredScore(NamedTuple):
    """The change of one score of a group: old and new mean, and the number of changed rollouts. `agentbench rescore` prints it."""

    group: str
    score: str
    was: float | None  # old mean; None if the score was not measured
    now: float | None  # new mean; None if the score was not measured
    changed: int  # rollouts whose value has changed, was added or was removed
    rollouts: int  # scored rollouts
    failed: int  # rollouts on which the scorer failed
    reason: str  # reason of the first of these failures


@dataclasses.dataclass
class RescoredSuite:
    """A group while its rollouts are scored again: the suite as it is now, its scorers, the old results, and counts of changes."""

    suite: Suite
    scenarios: Mapping[str, Scenario]
    names: Mapping[str, str]  # score -> name or import path of its scorer, for scorers of the suite and of the command line
    scorers: Mapping[str, Scorer]  # score -> scorer that computes it again
    kept: Sequence[str]  # scores that keep their values, because their scorers call a judge
    old: SuiteResult
    scales: Mapping[str, Scale]  # score -> scale that its scorer declares now, or for kept scores, declared in the run
    changed: Counter[str] = dataclasses.field(default_factory=Counter)
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)
    rollouts: int = 0

    @property
    def again(self) -> dict[str, str]:
        """For each score that is computed again, the name or import path of its scorer."""
        return {score: self.names[score] for score in self.scorers}

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """For each score that is computed again, the hash of its scorer: the present code, options and judge."""
        return score_hashes(self.suite, self.again)

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of all scores of the new run: the old ones in their order, then new ones."""
        return tuple(dict.fromkeys([*self.old.scorers, *self.scorers]))

    def add(self, old: Rollout, new: Rollout) -> None:
        if new.evaluable:
            self.rollouts += 1
            self.changed.update(name for name in self.scorers if old.scores.get(name) != new.scores.get(name))
            self.reasons = {**new.score_errors, **self.reasons}


def refuse_empty(run: Run, source: Path) -> None:
    """Raises ConfigError if no rollout of a run can be scored."""
    counts: Counter[str] = sum((Counter(suite.rollouts) for suite in run.suites.values()), Counter())
    if not any(counts[status] for status in EVALUABLE):
        known = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        raise ConfigError(
            f"{source} has nothing to score: only rollouts with status ok or limit have scores, but this run has {known or 'none'}"
        )


def load_groups(run: Run, folders: Mapping[str, Path], names: Sequence[str]) -> dict[str, RescoredSuite]:
    """Loads the suites and scorers of a run. Returns its groups by name.

    Args:
        run: The stored run.
        folders: Suite -> folder, for suites that are not in the folder that the run names.
        names: Scorers to run; empty: all scorers of a suite.

    Raises:
        ConfigError: A suite or a scorer is not found, or the data have changed since the run.
    """
    groups, suites = {}, dict[Path, Suite]()
    for group, old in run.suites.items():
        name = suite_of(group, old.variant)
        folder = folders.get(name) or Path(old.folder)
        if folder not in suites:
            suites[folder] = _load(folder, name)
        suite = suites[folder]
        _check_data(suite, old)
        known = {score_name(scorer): scorer for scorer in suite.scorers}
        chosen = {score_name(each): known.get(each, each) for each in names} or known
        loaded = {score: scorer_of(each, suite.folder, suite.scorers.get(each)) for score, each in chosen.items()}
        kept = [score for score, scorer in loaded.items() if wants_judge(scorer)]
        again = {score: scorer for score, scorer in loaded.items() if score not in kept}
        scales = {**old.scales, **{score: declared_scale(chosen[score], scorer) for score, scorer in again.items()}}
        groups[group] = RescoredSuite(suite, {each.id: each for each in suite.scenarios}, {**known, **chosen}, again, kept, old, scales)
    return groups


def _load(folder: Path, name: str) -> Suite:
    if not (folder / SUITE_FILE).is_file():
        raise ConfigError(f"suite {name!r}: {folder / SUITE_FILE} does not exist; pass the suite's folder with --suite")
    suite = load_suite(folder / SUITE_FILE)
    if suite.name != name:
        raise ConfigError(
            f"{folder / SUITE_FILE} is the suite {suite.name!r}, but the run has rollouts of {name!r}; "
            f"pass the folder of {name!r} with --suite"
        )
    return suite


def _check_data(suite: Suite, old: SuiteResult) -> None:
    was, now = codec.plain(old.dataset), codec.plain(suite.dataset)
    if was["sha256"] != now["sha256"]:
        differences = [f"{key} {was[key]!r}, now {now[key]!r}" for key in now if was[key] != now[key] and key != "sha256"]
        differences.append(f"sha256 {was['sha256'][:12]}, now {now['sha256'][:12]}")
        raise ConfigError(
            f"{suite.folder / now['file']} is not the data set of the run: {'; '.join(differences)}. "
            f"Pass a folder with the old data with --suite"
        )


async def rescore(run: Run, source: Path, groups: Mapping[str, RescoredSuite]) -> tuple[Path, Run, RunReader]:
    """Scores all rollouts of the run at `source` again, and writes the new run, without a gate verdict and reports.

    Holds one rollout in memory at a time. Returns the directory of the new run, the run, and the reader that has counted its rollouts.
    Raises ConfigError if the run has no journal.
    """
    check_journal(source)
    target, redact = _make_directory(source), Redactor(public=public_of(group.suite for group in groups.values()))
    read = RunReader()
    try:
        changed = copy_messages(source, target, redact)
        with (target / FILE).open("xb") as lines:
            for old in read_journal(source):
                group = groups.get(old.key.group) if old.kind == "scenario" else None
                new = await _rescore_rollout(old, group, run.settings) if group else old
                lines.write(sealed(with_changed_ids(redact(record_line(new).decode()).encode(), changed)) + b"\n")
                if group:
                    group.add(old, new)
                    read.add(new, main := group.scores[0], scale_in(group.scales, main))
        new_run = redacted(_run(run, target.name, groups, read), redact)
        write_run(new_run, target)
    except BaseException:
        discard(target)
        raise
    return target, new_run, read


def _make_directory(source: Path) -> Path:
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        target = source.resolve().with_name(f"{source.resolve().name}-rescored{suffix}")
        try:
            target.mkdir(PRIVATE)
        except FileExistsError:
            continue
        return target
    raise ConfigError(f"{source} was scored again 999 times; remove some of the directories {source.name}-rescored-...")


async def _rescore_rollout(old: Rollout, group: RescoredSuite, settings: RunOptions) -> Rollout:
    """Scores a rollout again and returns the new record. Time limits of scorers and size limits of texts are those of the old session."""
    if old.scenario not in group.scenarios:
        raise ConfigError(
            f"{group.suite.folder / SUITE_FILE} has no scenario {old.scenario!r}, but the run has a rollout of it; "
            "pass a folder with the old scenarios with --suite"
        )
    with redirect_stderr(StringIO()):  # Hide tracebacks of scorers. Their last lines are in the record.
        seconds = settings.budgets.get("rollout") or group.suite.timeout
        new = await scored(old, group.scenarios[old.scenario], group.scorers, no_judge, seconds, codec.read(Sizes, settings.sizes))
    content = {**old.content, "scorers": {**old.content.get("scorers", {}), **group.hashes}}
    if not old.evaluable:
        return dataclasses.replace(old, content=content)
    errors = {name: reason for name, reason in old.score_errors.items() if name not in group.scorers}
    scores = {name: score for name, score in old.scores.items() if name not in group.scorers}
    drafts = tuple(
        dataclasses.replace(after, scores={**before.scores, **after.scores}) for before, after in zip(old.drafts, new.drafts, strict=True)
    )
    return dataclasses.replace(
        new, content=content, scores={**scores, **new.scores}, score_errors={**errors, **new.score_errors}, drafts=drafts
    )


def _run(run: Run, name: str, groups: Mapping[str, RescoredSuite], read: RunReader) -> Run:
    """Returns the contents of the new run's run.json: the old one with new scores, but without a gate verdict and a command to resume."""
    facts: SessionFacts = dataclasses.replace(
        run,
        id=name,
        ab=run.ab and _without_scores(run.ab, groups.values()),
        gate=None,
        identity=run.identity and _identity(run.identity, groups),
        resume=None,
        rescored=Rescored(run.id, datetime.now().astimezone().isoformat(timespec="seconds")),
    )
    return build_run(facts, [_planned_suite(group, each) for group, each in groups.items()], read)


def _without_scores(ab: ArmsCompared, groups: Iterable[RescoredSuite]) -> ArmsCompared:
    """Returns an A/B comparison without the scores that were computed again, because the comparison used their old values."""
    names = {score for group in groups for score in group.scorers}
    return dataclasses.replace(ab, comparisons=tuple(each for each in ab.comparisons if each.metric not in names))


def _identity(old: RunIdentity, groups: Mapping[str, RescoredSuite]) -> RunIdentity:
    """Returns the identity (hashes of the setup) of the new run: that of the old one, with hashes of the present scoring."""
    scoring = {name: mixed_scoring(each, groups[name].suite, groups[name].again) for name, each in old.scoring.items()}
    return dataclasses.replace(old, scoring=scoring, hashes={**old.hashes, "scoring": digest(scoring)})


def _planned_suite(name: str, group: RescoredSuite) -> PlannedSuite:
    """Returns the facts about a group (suite and variant) for the new run, with the names of old and new scores.

    Facts that do not depend on the scoring, such as those that only the old session knew, are those of the old run.
    """
    suite, scorers = group.suite, {score: group.names.get(score, score) for score in group.scores}
    new = {score: ScoredBy(each, suite.scorers.get(each, {})) for score, each in scorers.items() if score in group.scorers}
    changes = {
        "folder": str(suite.folder),
        "scorers": group.scores,
        "scored_by": {**group.old.scored_by, **new},
        "scales": {score: scale_in(group.scales, score) for score in group.scores},
    }
    questions = {each.id: question(each.messages) for each in suite.scenarios}
    return PlannedSuite(name, SuiteFacts(**group.old.facts() | changes), questions, suite.roles, group.old.population)


class ThresholdResult(NamedTuple):
    """The number of rollouts of a group that miss one threshold with their new scores."""

    group: str
    score: str
    threshold: float
    below: int  # rollouts that miss the threshold, including those whose agent raised
    rollouts: int


def missed_thresholds(groups: Mapping[str, RescoredSuite], read: RunReader) -> Iterator[ThresholdResult]:
    """Yields a result for each threshold that at least one rollout misses with its new score. Ignores scenarios in quarantine."""
    for name, group in groups.items():
        quarantined, tally = {each.scenario for each in group.old.quarantined}, read.suites[name]
        for score, required in group.old.thresholds.items():
            if score.endswith(".mean"):
                continue
            values = [value for scenario, each in tally.scores[score].items() if scenario not in quarantined for value in each]
            crashed = sum(count for scenario, count in tally.agent_errors.items() if scenario not in quarantined)
            pass_threshold = PassThreshold(score, required, scale_in(group.scales, score).falling)
            below = crashed + sum(not pass_threshold.reached(value) for value in values)
            if below:
                yield ThresholdResult(name, score, required, below, len(values) + crashed)


def changes(groups: Mapping[str, RescoredSuite], new: Run) -> Iterator[RescoredScore]:
    """Yields the change of each score that was computed again, for each group."""
    for name, group in groups.items():
        for score in group.scorers:
            was, now = (_value(suite, score) for suite in (group.old, new.suites[name]))
            failed = new.suites[name].score_errors.get(score, 0)
            yield RescoredScore(name, score, was, now, group.changed[score], group.rollouts, failed, group.reasons.get(score, ""))


def _value(suite: SuiteResult, score: str) -> float | None:
    mean = suite.scores[score].mean if score in suite.scores else None
    return mean.value if mean else None
