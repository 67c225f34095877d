"""The greatest level that is good enough: whether the calls of one meet their objectives and its quality is not worse, and the search by
doubling and halving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pytest_agentbench.gate.evidence import LOST, good_shares, samples, score_limits, uncounted
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision, judge
from pytest_agentbench.stats.means import Interval, scenarios_interval
from pytest_agentbench.stats.paired import compare
from pytest_agentbench.sweep.levels import Sweep, SweepLevel


@dataclass(frozen=True)
class Criteria:
    """What is good enough."""

    slo: Mapping[str, float]  # objective -> milliseconds; empty: any speed is
    target: float = 0.9  # share of calls that have to meet all of them
    margin: float = 0.05  # by which the mean of the main score may be lower than at the smallest level


@dataclass(frozen=True)
class LevelVerdict:
    """One level by these terms. PASS: shown to hold; FAIL: shown not to; INCONCLUSIVE: neither."""

    concurrency: int
    share: Interval | None  # of good calls; None without objectives
    speed: str  # PASS | FAIL | INCONCLUSIVE
    quality: Decision | None  # against the smallest level; None of that one itself
    lost: int = 0  # rollouts that nothing is known of; with them a level is not shown to hold

    @property
    def verdict(self) -> str:
        verdicts = {self.speed, self.quality.verdict if self.quality else PASS, INCONCLUSIVE if self.lost else PASS}
        return FAIL if FAIL in verdicts else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASS


def judgements(sweep: Sweep, terms: Criteria) -> list[LevelVerdict]:
    """Of each level, by concurrency."""
    first = sweep.levels[0]
    return [_judged(sweep, level, None if level is first else first, terms) for level in sweep.levels]


def _judged(sweep: Sweep, level: SweepLevel, first: SweepLevel | None, terms: Criteria) -> LevelVerdict:
    share, speed = None, PASS
    if terms.slo:
        measured = good_shares(level.trials, terms.slo)
        share = scenarios_interval(
            {name: each.scores for name, each in measured.items()}, {name: each.cluster for name, each in measured.items()}
        )
        speed = judge(share.low, share.high, terms.target)
    quality = _quality(sweep, level, first, terms.margin) if first and sweep.score else None
    return LevelVerdict(level.concurrency, share, speed, quality, _lost(sweep, level))


def _quality(sweep: Sweep, level: SweepLevel, first: SweepLevel, margin: float) -> Decision:
    scale = sweep.scale
    new, base = (samples(each.trials, sweep.score, scale) for each in (level, first))
    decision = compare(new, base, margin, limits=score_limits(scale, new, base), higher_is_better=not scale.falling)
    why = "; ".join(dict.fromkeys(filter(None, (uncounted(sweep.score, scale, each.trials) for each in (level, first)))))
    return replace(decision, verdict=INCONCLUSIVE, reason=why) if why and decision.verdict == PASS else decision


def _lost(sweep: Sweep, level: SweepLevel) -> int:
    """Rollouts without the score; of a suite without scores, those that failed."""
    if not sweep.score:
        return sum(trial.status in LOST for trial in level.trials)
    measured = samples(level.trials, sweep.score, sweep.scale)
    return len(level.trials) - sum(len(each.scores) for each in measured.values())


@dataclass(frozen=True)
class SustainedRange:
    """The greatest level that is good enough lies from `shown` up to, but not at, `refuted`."""

    shown: int | None  # the greatest level that holds, and with it all that were measured below; None: not even the smallest
    refuted: int | None  # the smallest level above that is shown not to hold; None: none is
    undecided: tuple[int, ...] = ()  # levels between, of which neither is shown


def greatest(verdicts: Mapping[int, str]) -> SustainedRange:
    """Of levels and their verdicts. More in flight is never taken to be better for a call, so what holds above one that fails is chance."""
    shown = None
    for level in sorted(verdicts):
        if verdicts[level] == FAIL:
            return SustainedRange(shown, level, _between(verdicts, shown, level))
        if verdicts[level] == PASS and not _between(verdicts, shown, level):
            shown = level
    return SustainedRange(shown, None, _between(verdicts, shown, None))


def _between(verdicts: Mapping[int, str], low: int | None, high: int | None) -> tuple[int, ...]:
    return tuple(sorted(level for level in verdicts if (low is None or level > low) and (high is None or level < high)))


def verdicts(judged: Sequence[LevelVerdict]) -> dict[int, str]:
    """Concurrency -> verdict."""
    return {each.concurrency: each.verdict for each in judged}


MOST = 14  # sessions of a search: enough to tell 1 from 1,000
NEAR = 0.1  # levels that are no further apart than this share of the smaller one are near enough


def search(session: Callable[[int], Mapping[int, str]], low: int, high: int) -> SustainedRange:
    """`session` measures a level, beside the lowest one, and gives the verdicts of what it measured: PASS, FAIL or INCONCLUSIVE.

    A level that is not shown to hold counts as too much, so the search goes on below it. At most MOST sessions.
    """
    verdicts: dict[int, str] = {}
    level: int | None = min(2 * low, high)
    for number in count(1):
        if level is None or number > MOST:
            break
        verdicts |= {each: verdict for each, verdict in session(level).items() if each == level or each not in verdicts}
        level = next_level(verdicts, low, high)
    return greatest(verdicts)


def next_level(verdicts: Mapping[int, str], low: int, high: int) -> int | None:
    """The level to be measured next; None: what is known is enough, or nothing holds at all."""
    if verdicts[low] != PASS:
        return None
    held = low
    for level in sorted(verdicts):
        if verdicts[level] != PASS:
            middle = (held + level) // 2
            return middle if level - held > max(1.0, held * NEAR) else None
        held = level
    return min(2 * held, high) if held < high else None
