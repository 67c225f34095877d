"""The report of a sweep: the knee (where more load costs more than it gains), the highest good level, and a row for each level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.reports import capacity_phrases, phrases
from pytest_agentbench.reports.document import Document, Fact, Figure, Level, Note, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.sweep.levels import Criteria, LevelVerdict, Sweep, SweepLevel, greatest, knee, short_blocks, verdicts


def document(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria, picture: str = "") -> Document:
    """Returns the report of a sweep. `picture` is the path of its figure, or empty."""
    figure = [Figure("throughput against latency, and the share of good calls", picture, level=Level.VERBOSE)] if picture else []
    files = Note(say(capacity_phrases.sweep_files, sweep.run), level=Level.VERBOSE)
    parts = (of("", _conclusions(sweep, judged, terms)), of("Levels", [_levels(sweep, judged), *figure, files]))
    return Document.of(f"Sweep of {sweep.suite} on {sweep.run.backend.name}", parts)


def _conclusions(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria) -> Iterator[Fact]:
    """Yields the knee, the highest level that is good enough, and everything that limits these results."""
    operations = sweep.operations
    if bend := knee(operations):
        yield Fact("knee", say(capacity_phrases.knee, bend.concurrency, max(operations).concurrency))
    yield Fact("answer", say(capacity_phrases.greatest, greatest(verdicts(judged)), terms))
    for level in sweep.levels:
        yield Fact("lost", say(capacity_phrases.lost_rollouts, level.concurrency, level.statuses), "open")
    yield Fact("not run", say(phrases.not_run, sweep.run), "open")
    yield Fact("warm-up", say(capacity_phrases.warm_up, sum(sweep.warm_up.values())))
    yield Fact("no warm-up", say(capacity_phrases.unwarmed, [level for level, rollouts in sweep.warm_up.items() if not rollouts]))
    yield from (Fact("blocks", say(capacity_phrases.short_blocks, *each)) for each in short_blocks(sweep))


def _levels(sweep: Sweep, judged: Sequence[LevelVerdict]) -> Table:
    counts = [(title, 0) for title in ("in flight", "rollouts", "failed calls")]
    rates = [(title, 1) for title in ("rollouts/h", "tokens/s", "ttft p50 ms", "p95", "e2e p50 ms", "p95")]
    rows = tuple(_row(sweep, level, each) for level, each in zip(sweep.levels, judged, strict=True))
    columns = heads(*counts, *rates, (sweep.score, 3), "good calls", "verdict")
    return Table(columns, rows)


def _row(sweep: Sweep, level: SweepLevel, judged: LevelVerdict) -> tuple[TableCell, ...]:
    rates = [level.part.value(name) for name in ("rollouts_per_hour", "output_tokens_per_s")]
    latencies = [level.latency(metric, q) for metric in ("ttft", "e2e") for q in (50, 95)]
    share = judged.share
    good = say(capacity_phrases.good_share, share.mean, share.low, share.high) if share else None
    verdict = say(capacity_phrases.level_verdict, judged.verdict)
    return (
        *(level.concurrency, len(level.part.rollouts), level.failed_calls),
        *(*rates, *latencies, sweep.quality(level), good, verdict),
    )
