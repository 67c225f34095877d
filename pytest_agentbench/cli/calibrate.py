"""`agentbench calibrate`: suggests thresholds from several runs of the same setup."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.gate.evidence import Evidence
    from pytest_agentbench.records import Scale


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    calibrate = commands.add_parser(
        "calibrate",
        help="Suggest thresholds from several runs of an unchanged setup",
        example="agentbench calibrate banking monday tuesday wednesday",
    )
    calibrate.add_argument("suite", metavar="SUITE", help="a suite or SUITE-VARIANT of these runs")
    calibrate.add_argument("names", nargs="+", metavar="RUN", help="two or more run directories, or their names in reports/")
    calibrate.takes_reports()
    calibrate.set_defaults(run=run_calibrate)


def run_calibrate(options: argparse.Namespace) -> None:
    """Prints YAML for suite.yaml, with the evidence as comments."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.gate.repeats import calibrate
    from pytest_agentbench.reports import comparison_phrases

    group, runs = options.suite, [*_runs(options)]
    scores = [*dict.fromkeys(name for run in runs for trial in run.groups[group] for name in trial.scores)]
    remarks = [comparison_phrases.suggested_by(group, [run.facts.run for run in runs])]
    remarks += map(comparison_phrases.not_the_same, _differ(runs, group, "agent", "backend"))
    if differing := [score for score in scores if len({frozenset(run.scored_by(group, score)) for run in runs}) > 1]:
        names = ", ".join(differing)
        raise ConfigError(f"{names} of these runs of {group} came about in different ways; `agentbench rescore` scores them again")
    thresholds, rules = list[str](), list[str]()
    for score in scores:
        scale = runs[0].scale(group, score)
        if any(not scale.is_comparable(run.scale(group, score)) for run in runs):
            raise ConfigError(f"{score} of these runs of {group} is on different scales; `agentbench rescore` scores them again")
        if scale.limits is None:
            remarks.append(comparison_phrases.unlimited(score))
            continue
        try:
            noise = calibrate(runs, group, score)
        except ValueError as error:
            raise ConfigError(f"{group}: {error}") from error
        remarks += comparison_phrases.noise(score, noise, holds=_holds(noise.margin, scale))
        worst, sign = _in_hundredths(noise.worst, scale), "" if scale.falling else "-"
        thresholds += [f"  {score}: {worst:g}"] if _decides(worst, scale) else []
        thresholds += [f"  {score}.mean: {noise.limit:g}"] if noise.limit is not None and _decides(noise.limit, scale) else []
        rules += [f"  - {score}.mean {scale.sign} {sign}{noise.margin:g} vs baseline"] if _holds(noise.margin, scale) else []
    lines = [f"# {remark}" for remark in remarks]
    for key, entries in (("thresholds", thresholds), ("gate", rules)):
        lines += [f"{key}:", *entries] if entries else []
    for line in lines:
        print(line)


def _runs(options: argparse.Namespace) -> Iterator[Evidence]:
    """Returns the evidence of each run. Raises ConfigError for a run that cannot be used."""
    from pytest_agentbench.errors import ConfigError, unknown_name
    from pytest_agentbench.gate.baselines import read_evidence, unfit_reasons
    from pytest_agentbench.runs.run_file import find_run, read_run

    directories = [find_run(name, options.reports).resolve() for name in options.names]
    if len(set(directories)) < max(2, len(directories)):
        raise ConfigError("calibrate takes two runs at least, each of them once")
    for directory in directories:
        run, evidence = read_run(directory), read_evidence(directory)
        if options.suite not in evidence.groups:
            raise ConfigError(f"{directory}: {unknown_name('suite', options.suite, [*evidence.groups])}")
        if found := [*unfit_reasons(run, evidence, evidence.groups[options.suite][0].suite)]:
            raise ConfigError(f"{directory} says nothing about limits: {'; '.join(found)}")
        yield evidence


def _differ(runs: list[Evidence], group: str, *parts: str) -> list[str]:
    return [part for part in parts if len({frozenset(run.hashes(group, part)) for run in runs}) > 1]


def _in_hundredths(score: float, scale: Scale) -> float:
    """Returns the strictest threshold in hundredths that a score reaches."""
    return (math.ceil(score * 100) if scale.falling else math.floor(score * 100)) / 100


def _decides(limit: float, scale: Scale) -> bool:
    """Returns whether some possible value does not reach a threshold."""
    return scale.worst is None or scale.loss(limit) < scale.loss(scale.worst)


def _holds(margin: float | None, scale: Scale) -> bool:
    """Returns whether a margin is known, and some run could miss it."""
    return margin is not None and (scale.width is None or margin < scale.width)
