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
    calibrate.add_argument("suite", metavar="SUITE", help="name of a suite in these runs, or SUITE-VARIANT")
    calibrate.add_argument("names", nargs="+", metavar="RUN", help="two or more run directories, or their names in reports/")
    calibrate.takes_reports()
    calibrate.set_defaults(run=run_calibrate)


def run_calibrate(options: argparse.Namespace) -> None:
    """Prints suggested thresholds and gate rules as YAML for suite.yaml. Comments in it show the measured noise."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.gate.repeats import calibrate
    from pytest_agentbench.reports import comparison_phrases

    group, runs = options.suite, [*_runs(options)]
    scores = [*dict.fromkeys(name for run in runs for trial in run.groups[group] for name in trial.scores)]
    remarks = [comparison_phrases.suggested_by(group, [run.facts.run for run in runs])]
    remarks += map(comparison_phrases.not_the_same, _differ(runs, group, "agent", "backend"))
    if differing := [score for score in scores if len({frozenset(run.scored_by(group, score)) for run in runs}) > 1]:
        names = ", ".join(differing)
        raise ConfigError(f"{names} of {group}: these runs used different scorers; score them again with `agentbench rescore`")
    thresholds, rules = list[str](), list[str]()
    for score in scores:
        scale = runs[0].scale(group, score)
        if any(not scale.is_comparable(run.scale(group, score)) for run in runs):
            raise ConfigError(f"{score} of {group}: these runs used different scales; score them again with `agentbench rescore`")
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
    """Yields the evidence of each run (its scores and hashes). Raises ConfigError if a run cannot be used."""
    from pytest_agentbench.errors import ConfigError, unknown_name
    from pytest_agentbench.gate.baselines import read_evidence, unfit_reasons
    from pytest_agentbench.runs.run_file import find_run, read_run

    directories = [find_run(name, options.reports).resolve() for name in options.names]
    if len(set(directories)) < max(2, len(directories)):
        raise ConfigError("calibrate needs at least two runs; name each of them once")
    for directory in directories:
        run, evidence = read_run(directory), read_evidence(directory)
        if options.suite not in evidence.groups:
            raise ConfigError(f"{directory}: {unknown_name('suite', options.suite, [*evidence.groups])}")
        if reasons := [*unfit_reasons(run, evidence, evidence.groups[options.suite][0].suite)]:
            raise ConfigError(f"{directory} is not suitable for choosing thresholds, so leave it out: {'; '.join(reasons)}")
        yield evidence


def _differ(runs: list[Evidence], group: str, *parts: str) -> list[str]:
    return [part for part in parts if len({frozenset(run.hashes(group, part)) for run in runs}) > 1]


def _in_hundredths(score: float, scale: Scale) -> float:
    """Rounds a score to hundredths, to the worse side, so that the score itself still reaches the threshold."""
    return (math.ceil(score * 100) if scale.falling else math.floor(score * 100)) / 100


def _decides(limit: float, scale: Scale) -> bool:
    """Returns whether any possible score misses the threshold `limit`. If none does, the threshold is useless."""
    return scale.worst is None or scale.loss(limit) < scale.loss(scale.worst)


def _holds(margin: float | None, scale: Scale) -> bool:
    """Returns whether a margin (an accepted loss) is known and less than the range of the score. Otherwise every run would pass."""
    return margin is not None and (scale.width is None or margin < scale.width)
