"""Analyses several runs of one setup: which thresholds all of them would pass, and how often the setup was run until it passed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import permutations
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import Evidence, samples
from pytest_agentbench.gate.exit_status import EXITS, FAILED
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.records import Scale
from pytest_agentbench.runs.results import EarlierRuns
from pytest_agentbench.runs.run_file import FILE, Run, read_run
from pytest_agentbench.stats.decisions import INCONCLUSIVE, PASS, judge

MARGINS = (0.01, 0.03, 0.05, 0.1)  # margins that are tried besides the suggested one
STEP = 100  # suggested numbers are rounded to 1 / STEP


@dataclass(frozen=True)
class Flaky:
    """A scenario whose score varied, with its lowest and highest score."""

    scenario: str
    low: float
    high: float


@dataclass(frozen=True)
class ScoreNoise:
    """The variation of one score over several runs of one setup, and the thresholds that follow from it."""

    means: tuple[float, ...]  # mean of each run
    scenarios: int
    flaky: tuple[Flaky, ...]  # widest range first, then by id
    pairs: int  # number of ordered pairs of run and baseline
    margin: float | None  # smallest margin, in hundredths, with which every pair passes; None if a pair cannot be compared
    verdicts: dict[float, Counter[str]]  # margin -> verdict -> number of pairs
    limit: float | None  # strictest threshold of the mean, in hundredths, that every run passes; None if a run has no interval
    worst: float  # worst score of any rollout
    fewest: int  # smallest number of trials of any scenario in any run


def calibrate(runs: Sequence[Evidence], group: str, score: str) -> ScoreNoise:
    """Returns how much a score varied over several runs. Raises ValueError for a single run, or if a run lacks the score."""
    scale = runs[0].scale(group, score)
    measured = [{name: each for name, each in samples(run.groups[group], score, scale).items() if each.scores} for run in runs]
    if len(runs) < 2 or not all(measured):
        raise ValueError(f"calibrating {score} needs two or more runs with this score; {sum(map(bool, measured))} of {len(runs)} have it")
    lows, highs = [], []
    for new, base in permutations(runs, 2):
        decision = judge_rules([_suite_rule(group, f"{score}.mean {scale.sign} 0 vs baseline", score, scale)], new, {group: base})[
            0
        ].decision
        lows.append(decision.low)
        highs.append(decision.high)
    margin = _above(highs if scale.falling else [None if low is None else -low for low in lows])
    alone = [judge_rules([_suite_rule(group, f"{score}.mean {scale.sign} 0", score, scale)], run, {})[0].decision for run in runs]
    limits = _above([each.high if scale.falling else None if each.low is None else -each.low for each in alone])
    every: dict[str, list[float]] = {}
    for scenarios in measured:
        for scenario, each in scenarios.items():
            every.setdefault(scenario, []).extend(each.scores)
    flaky = [Flaky(scenario, min(scores), max(scores)) for scenario, scores in every.items() if min(scores) < max(scores)]
    return ScoreNoise(
        means=tuple(math.fsum(each.mean for each in scenarios.values()) / len(scenarios) for scenarios in measured),
        scenarios=len(every),
        flaky=tuple(sorted(flaky, key=lambda each: (each.low - each.high, each.scenario))),
        pairs=len(lows),
        margin=margin,
        verdicts={
            tried: Counter(
                judge(low, high, tried if scale.falling else -tried, higher_is_better=not scale.falling)
                for low, high in zip(lows, highs, strict=True)
            )
            for tried in sorted({*MARGINS, *([] if margin is None else [margin])})
        },
        limit=None if limits is None else limits if scale.falling else -limits,
        worst=max((score for scores in every.values() for score in scores), key=scale.loss),
        fewest=min(len(each.scores) for scenarios in measured for each in scenarios.values()),
    )


def _suite_rule(group: str, text: str, score: str, scale: Scale) -> SuiteRule:
    return SuiteRule(group, parse_rule(text, [score], {score: scale}), scale, any_part=True)


def _above(values: Sequence[float | None]) -> float | None:
    """Returns the smallest hundredth above all values, or None if a value is unknown."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    first = math.floor(max(known) * STEP)
    return next(number / STEP for number in range(first, first + 3) if number / STEP > max(known))


#: Parts of an identity that two runs of one setup share. Hosts, concurrency and budgets may differ.
PARTS = ("code", "packages", "backend", "model", "data", "prompts", "tools", "agent", "scoring")

#: Verdicts on quality. A run that was interrupted or could not measure does not count, because running it again is the right reaction.
QUALITY_VERDICTS = (PASS, EXITS[FAILED].verdict, INCONCLUSIVE)

MOST = 200  # number of run folders that are considered: the newest ones


def setup_of(run: Run) -> Hashable:
    """Returns a key that runs of the same setup share, or None if the setup is unknown, for example without git."""
    identity = run.identity
    if identity is None or identity.code is None:
        return None
    hashes = tuple(identity.hashes[part] for part in PARTS)
    return hashes, frozenset(identity.options.suites.items()), run.settings.limit


def runs_of_same_setup(run: Run, reports: Path) -> list[Run]:
    """Returns the other runs with the same setup as `run` whose verdict is PASS, FAIL or INCONCLUSIVE, oldest first.

    Returns an empty list if the setup is unknown.
    """
    setup = setup_of(run)
    if setup is None or run.identity is None:
        return []
    hashes = {run.identity.hashes[part].encode() for part in PARTS}
    others = [each for each in _runs(reports, hashes) if each.id != run.id and each.verdict in QUALITY_VERDICTS and setup_of(each) == setup]
    return sorted(others, key=_began)


def earlier_runs(run: Run, reports: Path) -> EarlierRuns:
    """Counts the earlier runs of the same setup with the same baselines, and names those that did not pass."""
    compared = _baselines(run)
    earlier = [each for each in runs_of_same_setup(run, reports) if _began(each) < _began(run) and _baselines(each) == compared]
    return EarlierRuns(len(earlier), tuple(each.id for each in earlier if each.verdict != PASS))


def _baselines(run: Run) -> dict[str, str]:
    return {group: base.run for group, base in run.gate.baselines.items()} if run.gate else {}


def _began(run: Run) -> datetime:
    return datetime.fromisoformat(run.started_at)


def _runs(reports: Path, hashes: Collection[bytes]) -> Iterator[Run]:
    """Yields those of the newest MOST runs whose run.json contains all these hashes. Leaves out unreadable and rescored runs."""
    folders = sorted((path.parent for path in reports.glob(f"*/{FILE}") if not path.parent.is_symlink()), key=lambda path: path.name)
    for folder in folders[-MOST:]:
        try:
            text = (folder / FILE).read_bytes()
            if not all(hash in text for hash in hashes):  # Most runs have another setup, and parsing one takes milliseconds
                continue
            run = read_run(folder)
        except (ConfigError, OSError):
            continue
        if run.rescored is None:
            yield run
