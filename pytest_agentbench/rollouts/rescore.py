"""Scores of a stored run, computed again without a backend: a new run beside the old one, which is not touched."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from datetime import datetime
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.records import EVALUABLE, Json, Rollout, suite_of
from pytest_agentbench.rollouts.scoring import no_judge, scored, wants_judge
from pytest_agentbench.runs.directory import PRIVATE, discard
from pytest_agentbench.runs.journal import FILE, read_journal, record_line, sealed
from pytest_agentbench.runs.tally import Limit, SuiteTally, build_suite, known_mean, write_run
from pytest_agentbench.scorers import LOWER_IS_BETTER, Scorer, check_scores, load_scorer
from pytest_agentbench.stats.decisions import POPULATION
from pytest_agentbench.stats.pass_rates import EVERY, Bar, PassRate
from pytest_agentbench.suites.disclosure import public_of
from pytest_agentbench.suites.hashes import digest, mixed_scoring, score_hashes
from pytest_agentbench.suites.suite import SUITE_FILE, Scenario, Suite, load_suite, score_name


class Change(NamedTuple):
    """What scoring again made of one score of one suite under one variant."""

    group: str
    score: str
    was: float | None  # mean over all; None when it was not measured
    now: float | None
    changed: int  # rollouts whose value is another one, or is there now, or is not there any more
    rollouts: int  # that were scored
    failed: int  # rollouts on which the scorer failed
    reason: str  # why, of the first of them


@dataclasses.dataclass
class Group:
    """A suite under one variant, while its rollouts are read."""

    suite: Suite
    scenarios: Mapping[str, Scenario]
    names: Mapping[str, str]  # score -> name or import path of its scorer, of the suite's and of those asked for
    scorers: Mapping[str, Scorer]  # score -> what computes it again
    kept: Sequence[str]  # scores whose scorers ask a judge
    part: Json  # of the old run.json
    tally: SuiteTally = dataclasses.field(default_factory=SuiteTally)
    changed: Counter[str] = dataclasses.field(default_factory=Counter)
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)
    rollouts: int = 0

    @property
    def again(self) -> dict[str, str]:
        """Score -> name of its scorer, of those that are computed again."""
        return {score: self.names[score] for score in self.scorers}

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """Of how those come about now."""
        return score_hashes(self.suite, self.again)

    @property
    def scores(self) -> tuple[str, ...]:
        """All scores of the new run: the old ones in their order, then new ones."""
        return tuple(dict.fromkeys([*self.part["scorers"], *self.scorers]))

    def add(self, old: Rollout, new: Rollout) -> None:
        self.tally.add(new, self.scores[0])
        if new.evaluable:
            self.rollouts += 1
            self.changed.update(name for name in self.scorers if old.scores.get(name) != new.scores.get(name))
            self.reasons = {**new.score_errors, **self.reasons}


def refuse_empty(run: Json, source: Path) -> None:
    """Raises ConfigError for a run of which no rollout came far enough to be scored."""
    counts: Counter[str] = sum((Counter(part["rollouts"]) for part in run["suites"].values()), Counter())
    if not any(counts[status] for status in EVALUABLE):
        known = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        raise ConfigError(f"{source} has nothing to score: {f'its rollouts are {known}' if known else 'it has no rollouts'}")


def load_groups(run: Json, folders: Mapping[str, Path], names: Sequence[str]) -> dict[str, Group]:
    """The groups of a run by their names; `folders` of suites take the place of those that the run names, `names` are scorers, or all.

    Raises ConfigError where a suite or a scorer is not found, and where the data are not those of the run.
    """
    groups, suites = {}, dict[Path, Suite]()
    for group, part in run["suites"].items():
        name = suite_of(group, part["variant"])
        folder = folders.get(name) or ("folder" in part and Path(part["folder"]))
        if not folder:
            raise ConfigError(f"the run does not say where suite {name!r} is; give its folder with --suite")
        if folder not in suites:
            suites[folder] = _loaded(folder, name)
        suite = suites[folder]
        _check_data(suite, part)
        known = {score_name(scorer): scorer for scorer in suite.scorers}
        chosen = {score_name(each): known.get(each, each) for each in names} or known
        found = {score: load_scorer(each, suite.folder, suite.scorers.get(each)) for score, each in chosen.items()}
        kept = [score for score, scorer in found.items() if wants_judge(scorer)]
        again = {score: scorer for score, scorer in found.items() if score not in kept}
        groups[group] = Group(suite, {each.id: each for each in suite.scenarios}, {**known, **chosen}, again, kept, part)
    return groups


def _loaded(folder: Path, name: str) -> Suite:
    if not (folder / SUITE_FILE).is_file():
        raise ConfigError(f"suite {name!r}: there is no {folder / SUITE_FILE}; give its folder with --suite")
    suite = load_suite(folder / SUITE_FILE)
    check_scores(suite)
    if suite.name != name:
        raise ConfigError(f"{folder / SUITE_FILE} is the suite {suite.name!r}, and the run has no rollouts of it but of {name!r}")
    return suite


def _check_data(suite: Suite, part: Json) -> None:
    was, now = part["dataset"], dataclasses.asdict(suite.dataset)
    if was["sha256"] != now["sha256"]:
        differences = [f"{key} {was[key]!r}, now {now[key]!r}" for key in now if was.get(key) != now[key] and key != "sha256"]
        differences.append(f"sha256 {was['sha256'][:12]}, now {now['sha256'][:12]}")
        raise ConfigError(
            f"{suite.folder / now['file']} is not the data set of the run: {'; '.join(differences)}. "
            f"--suite names a folder that has it as it was"
        )


async def rescore(run: Json, source: Path, groups: Mapping[str, Group]) -> tuple[Path, Json, list[Change]]:
    """Writes the new run, one rollout in memory at a time; returns its directory, its run.json, and what has changed.

    Limits are judged; a gate is not, and reports are not written.
    """
    target, redact = _beside(source), Redactor(public=public_of(group.suite for group in groups.values()))
    try:
        with (target / FILE).open("xb") as lines:
            for old in read_journal(source):
                group = groups.get(old.key.group) if old.kind == "scenario" else None
                new = await _again(old, group) if group else old
                lines.write(sealed(redact(record_line(new).decode()).encode()) + b"\n")
                if group:
                    group.add(old, new)
        new_run: Json = json.loads(redact(json.dumps(_run(run, target.name, groups))))
        write_run(new_run, target)
    except BaseException:
        discard(target)
        raise
    return target, new_run, [change for group in groups for change in _changes(group, groups[group], new_run["suites"][group])]


def _beside(source: Path) -> Path:
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        target = source.resolve().with_name(f"{source.resolve().name}-rescored{suffix}")
        try:
            target.mkdir(PRIVATE)
        except FileExistsError:
            continue
        return target
    raise ConfigError(f"{source} was scored again 999 times; remove some of the results")


async def _again(old: Rollout, group: Group) -> Rollout:
    if old.scenario not in group.scenarios:
        raise ConfigError(f"{group.suite.folder / SUITE_FILE}: there is no scenario {old.scenario!r}, of which the run has a rollout")
    with redirect_stderr(StringIO()):  # tracebacks of scorers; their last lines are in the record
        new = await scored(old, group.scenarios[old.scenario], group.scorers, no_judge)
    known = old.content.get("scorers")  # in runs of older versions one hash of all
    content = {**old.content, "scorers": {**(known if isinstance(known, Mapping) else {}), **group.hashes}}
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


def _run(run: Json, name: str, groups: Mapping[str, Group]) -> Json:
    """run.json of the new run: the old one with other scores, and limits judged on them."""
    suites = {group: _part(each) for group, each in groups.items()}
    limits = [_judged_again(limit, suites[limit["suite"]], groups[limit["suite"]]) for limit in run["limits"]]
    return {
        **run,
        "id": name,
        "suites": suites,
        "limits": limits,
        "ab": run["ab"] and _without_scores(run["ab"], groups.values()),
        "gate": None,
        "identity": run["identity"] and _identity(run["identity"], groups),
        "resume": None,  # no session has worked on it
        "rescored": {"run": run["id"], "at": datetime.now().astimezone().isoformat(timespec="seconds")},
    }


def _without_scores(ab: Json, groups: Iterable[Group]) -> Json:
    """The comparison of two arms without that of scores which were computed again: it was one of other scores."""
    names = {score for group in groups for score in group.scorers}
    return {**ab, "comparisons": [each for each in ab["comparisons"] if each["metric"] not in names]}


def _identity(old: Json, groups: Mapping[str, Group]) -> Json:
    """The identity of the run, with the scoring as it is now."""
    scoring = {name: mixed_scoring(each, groups[name].suite, groups[name].again) for name, each in old["scoring"].items()}
    return {**old, "scoring": scoring, "hashes": {**old["hashes"], "scoring": digest(scoring)}}


def _part(group: Group) -> Json:
    names = (group.names.get(score, score) for score in group.scores)
    scorers = {name: group.suite.scorers.get(name, {}) for name in names}
    means = {score: each["mean"] or {} for score, each in group.part["scores"].items()}
    population = [score for score, mean in means.items() if mean.get("of") == POPULATION]
    passes = group.part.get("passes") or {}  # runs of older versions have none
    population += [
        PassRate(every, rate["k"]).name for key, every in EVERY.items() for rate in passes.get(key, ()) if rate["of"] == POPULATION
    ]
    suite = dataclasses.replace(group.suite, scorers=scorers)
    fresh = build_suite(suite, group.part["variant"], group.tally, group.part["thresholds"], population=population)
    scored_by = {**group.part.get("scored_by", {}), **{score: fresh["scored_by"][score] for score in group.scorers}}
    return {
        **group.part,
        **{key: fresh[key] for key in ("folder", "scorers", "scores", "passes", "retried_scores", "score_errors", "worst")},
        "scored_by": scored_by,
    }


def _judged_again(limit: Json, part: Json, group: Group) -> Json:
    score = limit["name"].removesuffix(".mean")
    if score not in group.scorers:
        return limit
    value, why = known_mean(part, score)
    fields = {key: limit[key] for key in limit if key != "failed"}
    judged = Limit(**{**fields, "value": value, "note": why if limit["judged"] else limit["note"]})
    return {**dataclasses.asdict(judged), "failed": judged.failed}


class Floor(NamedTuple):
    """What became of one floor under each scenario of a suite under one variant."""

    group: str
    score: str
    floor: float
    below: int  # rollouts, those in which the agent raised among them
    rollouts: int


def floors(groups: Mapping[str, Group]) -> Iterator[Floor]:
    """The floors that rollouts of a run do not reach with their new scores; scenarios in quarantine have none."""
    for name, group in groups.items():
        held = {each["scenario"] for each in group.part["quarantined"]}
        for score, floor in group.part["thresholds"].items():
            if score.endswith(".mean"):
                continue
            values = [value for scenario, each in group.tally.scores[score].items() if scenario not in held for value in each]
            crashed = sum(count for scenario, count in group.tally.agent_errors.items() if scenario not in held)
            bar = Bar(score, floor, score in LOWER_IS_BETTER)
            below = crashed + sum(not bar.reached(value) for value in values)
            if below:
                yield Floor(name, score, floor, below, len(values) + crashed)


def _changes(name: str, group: Group, part: Json) -> Iterator[Change]:
    for score in group.scorers:
        was, now = (each["scores"].get(score, {"mean": None})["mean"] for each in (group.part, part))
        failed = part["score_errors"].get(score, 0)
        means = was and was["value"], now and now["value"]
        yield Change(name, score, *means, group.changed[score], group.rollouts, failed, group.reasons.get(score, ""))
