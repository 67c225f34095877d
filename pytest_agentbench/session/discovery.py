"""Finds the suites that the paths on the command line lead to, and loads them without letting one spoil another."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError, MissingData
from pytest_agentbench.records import Json, Scale
from pytest_agentbench.suites import arms as arms_of
from pytest_agentbench.suites.arms import Arm, VariantOrigin
from pytest_agentbench.suites.quarantine import check_quarantine
from pytest_agentbench.suites.suite import SUITE_FILE, Suite

if TYPE_CHECKING:
    from pytest_agentbench.gate.rules import Rule
    from pytest_agentbench.rollouts.isolation.protocol import FromCodeCheck


@dataclass(frozen=True)
class DiscoveredSuite:
    """A suite, or why there is none, and what a test process has to know of it."""

    folder: Path
    suite: Suite | None
    thresholds: Mapping[str, float]
    variants: tuple[str, ...]
    trials: int
    error: str = ""
    skip: bool = False  # whether the error is no fault: its tests are skipped
    marks: bool = True  # whether its name is a mark of its tests
    changed_by: str = ""  # the command line's changes of its suite.yaml, for a sentence about that file
    sides: Mapping[str, VariantOrigin] = field(default_factory=dict)  # of an A/B session: variant -> the suite's own, and the arm

    @property
    def name(self) -> str:
        """The suite's name, or its folder's when it could not be loaded."""
        return self.suite.name if self.suite else self.folder.name

    @property
    def is_broken(self) -> bool:
        """Whether it cannot run for a fault of somebody's, who is told."""
        return bool(self.error) and not self.skip

    def for_worker(self) -> Json:
        """What tests are made of: names and numbers, no data."""
        if self.suite is None:
            return {"name": self.name, "error": self.error, "skip": self.skip, "marks": self.marks}
        return {
            "name": self.name,
            "error": "",
            "skip": False,
            "marks": self.marks,
            "description": self.suite.description,
            "ids": [scenario.id for scenario in self.suite.scenarios],
            "variants": [*self.variants],
            "sizes": {name: limit for name, limit in self.suite.sizes.items() if name in self.variants},
            "trials": self.trials,
            "thresholds": self.thresholds,
            "scorers": [*self.suite.score_names],
            "scales": {score: scale.text for score, scale in self.suite.every_scale.items()},
            "label_source": self.suite.dataset.label_source,
            "quarantined": {each.scenario: str(each) for each in self.suite.quarantine},
            "unsupported": self.suite.unsupported,
        }


def suite_folders(args: Sequence[str], root: Path, skipped: Sequence[str]) -> list[Path]:
    """Folders with a suite.yaml in, under or above the given pytest arguments; `skipped` are patterns of folder names."""
    folders: dict[Path, None] = {}
    for arg in args:
        path = Path(os.path.abspath(arg.split("::", 1)[0]))  # noqa: PTH100 - pytest's own paths do not follow links either
        folders.update(dict.fromkeys(_above(path, root)))
        folders.update(dict.fromkeys(_below(path, skipped)))
    return [*folders]


def _above(path: Path, root: Path) -> Iterator[Path]:
    inside = [each for each in (path, *path.parents) if each == root or root in each.parents]
    yield from (each for each in inside if (each / SUITE_FILE).is_file())


def _below(path: Path, skipped: Sequence[str]) -> Iterator[Path]:
    if not path.is_dir():
        return
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not is_skipped(Path(folder, name), skipped))
        if SUITE_FILE in files:
            yield Path(folder)


def is_skipped(folder: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(folder.name, pattern) for pattern in patterns) or (folder / "pyvenv.cfg").is_file()


@dataclass(frozen=True)
class SuiteHead:
    """What is read of a suite.yaml before it is known whether its tests run."""

    folder: Path
    name: str  # the folder's where the file cannot be read: whoever loads it says so
    only_when_named: bool = False

    @classmethod
    def of(cls, folder: Path) -> SuiteHead:
        from pytest_agentbench.lib.config import load_yaml

        try:
            keys = load_yaml(folder / SUITE_FILE)
        except ConfigError:
            return cls(folder, folder.name)
        return cls(folder, str(keys.get("name")), keys.get("only_when_named") is True)

    def not_named(self, args: Sequence[str], marks: str) -> str:
        """Why a suite that runs only when it is named does not run now; empty when it does. `marks` is the expression of -m."""
        paths = [Path(os.path.abspath(arg.split("::", 1)[0])) for arg in args]  # noqa: PTH100 - as above
        named = re.search(rf"\b{re.escape(self.name)}\b", marks) or any(self.folder in (each, *each.parents) for each in paths)
        if not self.only_when_named or named:
            return ""
        by_path, by_mark = f"pytest {os.path.relpath(self.folder)}", f"pytest -m {self.name}"
        return f"{self.folder / SUITE_FILE}: this suite runs only when it is named: {by_path}, or {by_mark}"


def is_left_out(name: str, marks: str, suites: Collection[str]) -> bool:
    """Whether the expression of -m names other suites and nothing else, so that no test of this one runs."""
    words = re.split(r"(?<!\s)\s+or\s+", marks.strip())
    return name not in words and all(word in suites for word in words)


def find(
    folder: Path,
    changes: Sequence[tuple[str, Any]],
    variants: Sequence[str],
    trials: int | None,
    agent: str | None = None,
    *,
    insists: bool = False,
) -> DiscoveredSuite:
    """The suite in a folder; what is wrong with it is kept, and becomes the error of its tests.

    A data set that is not here is no fault, unless somebody `insists` on a verdict. Thresholds and rules are checked once the code
    of the suite has been, whose scorers declare what they may be (`with_sound_code`).
    """
    from pytest_agentbench.rollouts.rollout import preflight
    from pytest_agentbench.suites.folder import load_suite

    try:
        suite = load_suite(folder / SUITE_FILE, changes, agent)
        chosen = choose_variants(suite, variants)
        suite = preflight(suite, chosen)
        today = datetime.now().astimezone().date()
        check_quarantine(suite.quarantine, {each.id for each in suite.scenarios}, today, str(folder / SUITE_FILE))
    except MissingData as error:
        return DiscoveredSuite(folder, None, {}, (), 1, str(error), skip=not insists)
    except ConfigError as error:
        return DiscoveredSuite(folder, None, {}, (), 1, f"{error}{_changed_by(changes, agent)}")
    changed_by = _changed_by(changes, agent)
    return DiscoveredSuite(folder, suite, dict(suite.thresholds), chosen, trials or suite.trials, changed_by=changed_by)


def _changed_by(changes: Sequence[tuple[str, Any]], agent: str | None) -> str:
    """What of the command line has changed the suite.yaml that a sentence is about, without values; empty where nothing has."""
    options = [*(["--agentbench-agent"] if agent else []), *(f"--agentbench-set {name}" for name, _ in changes)]
    return f" (as changed by {', '.join(options)})" if options else ""


def check_rules(suite: Suite) -> None:
    """Raises ConfigError for a gate rule in suite.yaml that cannot be asked."""
    from pytest_agentbench.gate.rules import parse_rule
    from pytest_agentbench.runs.suite_result import bar_of

    passes = bar_of(suite.score_names, suite.thresholds, suite.scales) is not None
    for text in suite.gate:
        try:
            check_rule(suite, parse_rule(text, suite.score_names, suite.scales, passes=passes))
        except ConfigError as error:
            raise ConfigError(f"{suite.folder / SUITE_FILE}: {error}") from error


def check_rule(suite: Suite, rule: Rule) -> None:
    """Raises ConfigError for a rule about a score that every run, or none, would keep."""
    if rule.kind != "score":
        return
    scale = suite.scale(rule.metric)
    if not rule.versus:
        _check_limit(rule.metric, scale, rule.limit, f"the rule {rule.text!r}")
    elif scale.width is not None and rule.margin > scale.width:
        raise _out_of_range(rule.metric, scale, f"the margin {rule.text!r}")


def check_thresholds(suite: Suite, thresholds: Mapping[str, float], where: str = "") -> None:
    """Raises ConfigError, whose sentence begins with `where`, for a threshold that every score, or none, would reach."""
    for name, threshold in thresholds.items():
        score = name.removesuffix(".mean")
        _check_limit(score, suite.scale(score), threshold, f"{where}the threshold {name}: {threshold:g}")


def _check_limit(score: str, scale: Scale, limit: float, what: str) -> None:
    if not scale.contains(limit):
        raise _out_of_range(score, scale, what)


def _out_of_range(score: str, scale: Scale, what: str) -> ConfigError:
    return ConfigError(f"{what} is out of range: {score} is {scale.range_text}, so it would decide nothing")


def with_sound_code(discovered: Sequence[DiscoveredSuite]) -> list[DiscoveredSuite]:
    """Returns the suites with what their own scorers declare. No code is imported in this process.

    A suite becomes the error of its tests if its code cannot be loaded, or its thresholds or rules do not fit what its scorers declare.
    """
    from pytest_agentbench.rollouts.isolation.codecheck import brings_any, check_all

    own = [each for each in discovered if each.suite and brings_any(each.suite, each.variants)]
    checks = dict(zip([each.folder for each in own], check_all([(each.suite, each.variants) for each in own if each.suite]), strict=True))
    return [_with_scales(each, checks.get(each.folder)) for each in discovered]


def _with_scales(discovered: DiscoveredSuite, check: FromCodeCheck | None) -> DiscoveredSuite:
    """Returns the suite with the scales of its own scorers; `check` is that of its code, None if it has none."""
    from pytest_agentbench.rollouts.isolation.protocol import NotLoaded

    if discovered.suite is None:
        return discovered
    if isinstance(check, NotLoaded):
        return DiscoveredSuite(discovered.folder, None, {}, (), 1, check.reason)
    suite = discovered.suite.with_scales(check.scales) if check else discovered.suite
    try:
        check_thresholds(suite, suite.thresholds, f"{suite.folder / SUITE_FILE}: ")
        check_rules(suite)
    except ConfigError as error:
        return DiscoveredSuite(discovered.folder, None, {}, (), 1, f"{error}{discovered.changed_by}")
    return dataclasses.replace(discovered, suite=suite, thresholds=dict(suite.thresholds))


def in_arms(discovered: DiscoveredSuite, arms: Sequence[Arm]) -> DiscoveredSuite:
    """The suite under each arm of an A/B session."""
    from pytest_agentbench.rollouts.rollout import preflight

    if discovered.suite is None or not arms:
        return discovered
    try:
        suite, variants = arms_of.in_arms(discovered.suite, discovered.variants, arms)
        preflight(suite, variants)
    except ConfigError as error:
        return DiscoveredSuite(discovered.folder, None, {}, (), 1, str(error))
    return dataclasses.replace(discovered, suite=suite, variants=variants, sides=arms_of.sides(discovered.variants, arms))


def choose_variants(suite: Suite, names: Sequence[str]) -> tuple[str, ...]:
    """The variants to run; raises ConfigError for one that the suite does not have."""
    every = ("default", *suite.variants)
    if tuple(names) == ("all",):
        return every
    for name in names:
        if name not in every:
            raise ConfigError(f"{suite.folder / SUITE_FILE}: no variant {name!r}; known: {', '.join(every)}, or `all`")
    return tuple(names)


def merged_thresholds(
    discovered: DiscoveredSuite, backend: Mapping[str, Mapping[str, float]], chosen: Mapping[str, float]
) -> dict[str, float]:
    """Command line over backend.yaml over suite.yaml; raises ConfigError for a score that the suite does not measure."""
    assert discovered.suite is not None
    merged = {**discovered.thresholds, **backend.get(discovered.suite.name, {}), **chosen}
    for name in merged:
        if name.removesuffix(".mean") not in discovered.suite.score_names:
            raise ConfigError(
                f"threshold {name!r}: suite {discovered.suite.name!r} does not measure it; "
                f"it measures: {', '.join(discovered.suite.score_names)} (and <score>.mean)"
            )
    check_thresholds(discovered.suite, merged, f"suite {discovered.suite.name!r}: ")
    return merged
