"""Finds and loads the suites for the paths on the command line, and selects tests and scenarios, for -m and --agentbench-limit."""

from __future__ import annotations

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError, MissingData
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.questions_of_tests import SuiteInfo, UnavailableSuite, WorkerSuite
from pytest_agentbench.suites.suite import SUITE_FILE

if TYPE_CHECKING:
    from pytest_agentbench.rollouts.compile import CompiledSuite, CompileOptions
    from pytest_agentbench.suites.folder import SuiteText


@dataclass(frozen=True)
class DiscoveredSuites:
    """The suites that belong to the paths on the command line: in, under or above them."""

    compiled: Sequence[CompiledSuite]
    unavailable: Mapping[Path, UnavailableSuite]  # folder -> suite that cannot run, with the reason

    @property
    def folders(self) -> list[Path]:
        """The folders of all suites, including those that do not run."""
        return [*(each.folder for each in self.compiled), *self.unavailable]

    @property
    def names(self) -> set[str]:
        """The names of all suites, including those that do not run."""
        return {*(each.name for each in self.compiled), *(each.name for each in self.unavailable.values())}

    @property
    def broken(self) -> list[Path]:
        """The folders of the suites that cannot run because of an error in them."""
        return [folder for folder, each in self.unavailable.items() if not each.skip]

    @property
    def markers(self) -> list[tuple[str, Path]]:
        """Pairs (name, folder) of the suites whose names are pytest markers of their tests."""
        marked = [(each.name, folder) for folder, each in self.unavailable.items() if each.marks]
        return [*((each.name, each.folder) for each in self.compiled), *marked]


def unavailable_suite(folder: Path, reason: str, *, skip: bool = False) -> UnavailableSuite:
    """Returns the description of a suite that does not run. Its tests are skipped if `skip` is set, and otherwise fail with the reason."""
    return UnavailableSuite(folder.name, marks=True, reason=reason, skip=skip)


def worker_suite(compiled: CompiledSuite) -> WorkerSuite:
    """Returns the part of a suite that workers need to create its tests: names and numbers, no data."""
    suite = compiled.suite
    return WorkerSuite(
        SuiteInfo(
            name=suite.name,
            description=suite.description,
            ids=tuple(scenario.id for scenario in suite.scenarios),
            variants=compiled.variants,
            trials=compiled.trials,
            thresholds=compiled.thresholds,
            scorers=suite.score_names,
            label_source=suite.dataset.label_source,
            quarantined={each.scenario: str(each) for each in suite.quarantine},
        ),
        sizes={name: limit for name, limit in suite.sizes.items() if name in compiled.variants},
        scales=suite.every_scale,
        unsupported=suite.unsupported,
    )


def argument_path(arg: str) -> Path:
    """Returns the absolute path in an argument such as `scenarios/shop/test_shop.py::test_tools[shop-1]`. Links are not followed."""
    return Path(os.path.abspath(arg.split("::", 1)[0]))  # noqa: PTH100 - pytest's own paths do not follow links either


def suite_folders(args: Sequence[str], root: Path, skipped: Sequence[str]) -> list[Path]:
    """Returns the folders with a suite.yaml: those that pytest's arguments name, and those above or below a named path.

    `skipped` has patterns of folder names that are not searched.
    """
    folders: dict[Path, None] = {}
    for path in map(argument_path, args):
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
    """A parsed suite.yaml, before it is decided whether its tests run."""

    folder: Path
    text: SuiteText | None  # None if the file cannot be parsed
    fault: str = ""  # Reason why it cannot be parsed

    @classmethod
    def of(cls, folder: Path) -> SuiteHead:
        """Parses the suite.yaml in a folder."""
        from pytest_agentbench.suites.folder import SuiteText

        try:
            return cls(folder, SuiteText.of(folder / SUITE_FILE))
        except ConfigError as error:
            return cls(folder, None, str(error))

    @property
    def name(self) -> str:
        """The suite's name, or the folder's name if the file cannot be parsed."""
        return str(self.text.keys.get("name")) if self.text else self.folder.name

    @property
    def only_when_named(self) -> bool:
        """Whether the suite runs only if the command line names it."""
        return self.text is not None and self.text.keys.get("only_when_named") is True

    def not_named(self, args: Sequence[str], marks: str) -> str:
        """Returns why the suite is skipped, or an empty text. With `only_when_named` its path must be in `args` or its name in `marks`."""
        paths = map(argument_path, args)
        named = re.search(rf"\b{re.escape(self.name)}\b", marks) or any(self.folder in (each, *each.parents) for each in paths)
        if not self.only_when_named or named:
            return ""
        by_path, by_mark = f"pytest {os.path.relpath(self.folder)}", f"pytest -m {self.name}"
        return f"{self.folder / SUITE_FILE}: this suite runs only when it is named: {by_path}, or {by_mark}"


def is_left_out(name: str, marks: str, suites: Collection[str]) -> bool:
    """Returns whether the -m expression names only other suites, so that no test of this suite runs."""
    words = re.split(r"(?<!\s)\s+or\s+", marks.strip())
    return name not in words and all(word in suites for word in words)


def discover(heads: Sequence[SuiteHead], options: Mapping[str, CompileOptions], *, insists: bool) -> DiscoveredSuites:
    """Reads and checks suites, and returns those that run and those that do not.

    An error in one suite makes its own tests fail and does not affect the others.

    `options` has the options of each suite by its name. Tests of a suite whose data are not on this machine are skipped, or fail if
    `insists` is set (an option names the backend or requests a verdict).
    """
    from pytest_agentbench.rollouts.compile import CompiledSuite, compile_all

    texts = [(head.text, options[head.name]) for head in heads if head.text is not None]
    results = dict(zip([text.file.parent for text, _ in texts], compile_all(texts), strict=True))
    unavailable = {head.folder: unavailable_suite(head.folder, head.fault) for head in heads if head.text is None}
    for folder, error in results.items():
        if isinstance(error, ConfigError):
            unavailable[folder] = unavailable_suite(folder, str(error), skip=isinstance(error, MissingData) and not insists)
    return DiscoveredSuites([each for each in results.values() if isinstance(each, CompiledSuite)], unavailable)


def merged_thresholds(compiled: CompiledSuite, backend: Mapping[str, Mapping[str, float]], chosen: Mapping[str, float]) -> dict[str, float]:
    """Returns the thresholds in force. The command line overrides backend.yaml, which overrides suite.yaml.

    Raises ConfigError for a score that the suite does not measure, and for a threshold that every score, or no score, would reach.
    """
    from pytest_agentbench.rollouts.checks import threshold_faults

    suite = compiled.suite
    merged = {**compiled.thresholds, **backend.get(suite.name, {}), **chosen}
    for name in merged:
        if name.removesuffix(".mean") not in suite.score_names:
            raise ConfigError(
                f"threshold {name!r}: suite {suite.name!r} does not measure this score; "
                f"name one of {', '.join(suite.score_names)} (or <score>.mean)"
            )
    for fault in threshold_faults(suite, merged):
        raise ConfigError(f"suite {suite.name!r}: {fault}")
    return merged


def replaced_thresholds(compiled: CompiledSuite, backend: Mapping[str, Mapping[str, float]], name: str) -> str:
    """Returns a sentence about the thresholds of a suite that the backend called `name` replaces. Empty if it replaces none."""
    in_suite, own = compiled.suite.thresholds, backend.get(compiled.name, {})
    used = {score: limit for score, limit in own.items() if compiled.thresholds.get(score) == limit != in_suite.get(score)}
    if not used:
        return ""
    known = {score: in_suite[score] for score in used if score in in_suite}
    instead = f", not those of its suite.yaml ({_listed(known)})" if known else ""
    return f"thresholds of {compiled.name} are those of the backend {name} ({_listed(used)}){instead}"


def _listed(thresholds: Mapping[str, float]) -> str:
    return ", ".join(f"{score}: {limit:g}" for score, limit in thresholds.items())


def first_scenarios(keys: Iterable[RolloutKey], ids: Mapping[str, Sequence[str]], limit: int) -> set[tuple[str, str]]:
    """Returns the scenarios that --agentbench-limit leaves: the first `limit` of each suite and variant, among the rollouts in `keys`.

    Each is a pair (`suite` or `suite-variant`, scenario id). `ids` has the scenario ids of each suite in the order of the data set.
    """
    places = {suite: {scenario: place for place, scenario in enumerate(scenarios)} for suite, scenarios in ids.items()}
    selected: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for key in keys:
        selected[key.suite, key.group].add(key.scenario)
    return {
        (group, scenario)
        for (suite, group), scenarios in selected.items()
        for scenario in sorted(scenarios, key=lambda scenario: places[suite].get(scenario, -1))[:limit]
    }


def unknown_marks(expression: str, registered: Sequence[str]) -> list[str]:
    """Returns the words of a -m expression that are not names of markers. `registered` has pytest's marker lines, `shop: tests of ...`."""
    names = {"and", "or", "not", *(line.partition(":")[0].partition("(")[0].strip() for line in registered)}
    bare = re.sub(r"\([^()]*=[^()]*\)", "", expression)  # without the markers' arguments
    return [word for word in dict.fromkeys(re.findall(r"[^\s()]+", bare)) if word not in names]
