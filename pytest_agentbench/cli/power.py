"""`agentbench power`: estimates the smallest score drop that a suite can detect, and the trials that smaller drops need."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.records import Scale
    from pytest_agentbench.stats.power import Design, ScoreLevel
    from pytest_agentbench.suites.suite import Suite

DROPS = (0.01, 0.03, 0.05, 0.1)


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    power = commands.add_parser(
        "power", help="Estimate the smallest score drop that a suite can detect", example="agentbench power scenarios/banking --trials 1,3"
    )
    power.add_argument("suite", type=Path, metavar="SUITE", help="the suite's folder, such as scenarios/banking")
    power.add_argument("--trials", type=trials, default=(1, 3, 5), metavar="N,N", help="numbers of trials per scenario (default: 1,3,5)")
    power.add_argument(
        "--of",
        choices=["suite", "population"],
        default="suite",
        help="detect a drop over exactly this suite's scenarios, or over all scenarios like them (default: suite)",
    )
    power.add_argument(
        "--run",
        dest="name",
        metavar="RUN",
        help="a run of the suite with several trials, which shows how much they vary (default: an assumption)",
    )
    power.add_argument("--score", metavar="NAME", help="a score of the suite (default: its first one)")
    power.takes_reports()
    power.set_defaults(run=run_power)


def trials(text: str) -> tuple[int, ...]:
    """Reads numbers of trials, such as `1,3,5`. Raises ValueError if one is not a positive whole number."""
    counts = tuple(map(int, text.split(",")))
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def run_power(options: argparse.Namespace) -> None:
    """Prints two tables: the smallest drop for each number of trials, and the trials that each drop needs."""
    from pytest_agentbench.errors import ConfigError, unknown_name
    from pytest_agentbench.gate.verdict import CONFIDENCE
    from pytest_agentbench.stats.decisions import POPULATION
    from pytest_agentbench.stats.power import Design
    from pytest_agentbench.suites.folder import suite_file

    suite = declared_suite(suite_file(options.suite))
    score = options.score or suite.score_names[0]
    if score not in suite.score_names:
        raise ConfigError(f"{suite_file(options.suite)}: {unknown_name('score', score, suite.score_names)}")
    scale = scale_of(suite, score)
    if scale.width is None:
        raise ConfigError(
            f"{score} has no lowest or no highest value, so its detectable drop cannot be computed before a run; "
            "run the suite with a gate rule; below the rule, report.md says which change the run detects"
        )
    count, size = size_of(suite) if options.of == POPULATION else fixed_size_of(suite)
    within, level, source = noise_of(options, suite, score, scale)
    varies = f"{score} of a trial varies by {within**0.5 * scale.width:.3f} around its scenario's mean (standard deviation), {source}"
    print(f"{suite.name}: {size}; {varies}{'; lower is better, so a drop means that the score rises' if scale.falling else ''}")
    designs = [Design(count, number, within, of=options.of, confidence=CONFIDENCE, level=level) for number in options.trials]
    for line in (*_detectable(designs, scale.width), "", *_needed(designs, scale.width)):
        print(line)


def declared_suite(file: Path) -> Suite:
    """Loads a suite, with the scales that its built-in scorers declare. Raises ConfigError if the suite or a scorer cannot be loaded."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.scorers import built_in_scales
    from pytest_agentbench.suites.folder import load_suite

    suite = load_suite(file)
    scales, faults = built_in_scales(suite)
    for fault in faults:
        raise ConfigError(f"{file}: {fault}")
    return suite.with_scales(scales)


def scale_of(suite: Suite, score: str) -> Scale:
    """Returns the scale of a score. If one of the suite's own scorers declares it, its code is loaded; raises ConfigError if that fails."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.rollouts.isolation.codecheck import check_code
    from pytest_agentbench.rollouts.isolation.protocol import NotLoaded

    if score in suite.scales:
        return suite.scale(score)
    check = check_code(suite, ["default"])
    if isinstance(check, NotLoaded):
        raise ConfigError(check.reason)
    return check.scales[score]


def fixed_size_of(suite: Suite) -> tuple[int, str]:
    """Returns the number of scenarios of a suite, and a text with it, for drops over exactly these scenarios (`--of suite`).

    Raises ConfigError if there are too few for a decision.
    """
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.stats.intervals import too_few
    from pytest_agentbench.stats.mean_intervals import Clusters

    total = len(suite.scenarios)
    if why := too_few(Clusters.of(range(total))):
        raise ConfigError(f"{suite.name}: {why}")
    return total, f"{total} scenarios"


def size_of(suite: Suite) -> tuple[int, str]:
    """Returns the effective number of scenarios of a suite, and a text with it, for drops over all scenarios like these.

    If scenarios are in clusters, this number is lower than the real one, because those of one cluster may all fail together. Raises
    ConfigError if there are too few for a decision.
    """
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.stats.intervals import too_few
    from pytest_agentbench.stats.mean_intervals import Clusters

    total = len(suite.scenarios)
    clusters = Clusters.of_scenarios({each.id: each.cluster for each in suite.scenarios})
    if why := too_few(clusters):
        raise ConfigError(f"{suite.name}: {why}")
    if clusters.single:
        return total, f"{total} scenarios"
    worth = int(clusters.effective)
    return worth, f"{total} scenarios in {len(clusters.sizes)} clusters, counted as {worth}"


def noise_of(options: argparse.Namespace, suite: Suite, score: str, scale: Scale) -> tuple[float, ScoreLevel, str]:
    """Returns the variance of trials around their scenario's mean, the level of the scores, and the source of both in words.

    Scores are converted so that 0 is the worst and 1 the best. The source is the run of --run, or an assumption.
    """
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.gate.baselines import find_baseline, read_evidence
    from pytest_agentbench.gate.evidence import samples
    from pytest_agentbench.stats.power import ASSUMED, ASSUMED_MEAN, ScoreLevel, spread

    if options.name is None:
        level = ScoreLevel(ASSUMED_MEAN, ASSUMED_MEAN - ASSUMED)
        return ASSUMED, level, "an assumption for suites whose mean is 0.8 and whose scenarios differ; --run takes the value from a run"
    evidence = read_evidence(find_baseline(options.name, options.reports))
    if suite.name not in evidence.groups:
        raise ConfigError(
            f"{options.name} has no rollouts of {suite.name}, only of {', '.join(evidence.groups) or 'no suite'}; name another --run"
        )
    measured = samples(evidence.groups[suite.name], score, scale)
    assert scale.width is not None and scale.worst is not None  # `run_power` has checked it
    worst, width = scale.loss(scale.worst), scale.width
    scores = {name: [(worst - scale.loss(value)) / width for value in each.scores] for name, each in measured.items() if each.scores}
    if not any(len(each) > 1 for each in scores.values()) or len(scores) < 2:
        raise ConfigError(
            f"{options.name} has too few trials to show how trials vary; name a run with --agentbench-trials=3 and two scenarios or more"
        )
    within = spread(scores).within
    means = [math.fsum(each) / len(each) for each in scores.values()]
    level = ScoreLevel.of(means, within, len(scores) / sum(1 / len(each) for each in scores.values()))
    return within, level, f"as in {evidence.facts.run}"


def _detectable(designs: Sequence[Design], width: float) -> list[str]:
    lines = ["trials  smallest drop detected 4 times out of 5  margin that an unchanged run passes 4 times out of 5"]
    for design in designs:
        drop, margin = (f"{each * width:.3f}" if each < 1 else "none" for each in (design.smallest_drop(), design.smallest_margin()))
        lines.append(f"{design.trials:>6}  {drop:>38}  {margin:>52}")
    return lines


def _needed(designs: Sequence[Design], width: float) -> list[str]:
    from pytest_agentbench.records import MOST_TRIALS
    from pytest_agentbench.stats.power import needed_scenarios, needed_trials

    heads = [f"scenarios with {each.trials} trial{'s' * (each.trials > 1)}" for each in designs]
    lines = ["  ".join([" drop", "trials of these scenarios", *heads])]
    for drop in DROPS:  # shares of the range, so that the table is useful for any width
        most = needed_trials(drop, designs[0])
        cells = [f"{drop * width:>5g}", f"{most or f'more than {MOST_TRIALS}':>25}"]
        cells += [f"{needed_scenarios(drop, each):>{len(head)}}" for each, head in zip(designs, heads, strict=True)]
        lines.append("  ".join(cells))
    return lines
