"""The report of a sweep, and its files: a report for people, a picture, and tables for scripts.

The report has the knee (where more load costs more than it gains), the highest good level, and a row for each level.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.nat_benchmark import Heading, write_benchmark
from pytest_agentbench.records import Json
from pytest_agentbench.reports import capacity_phrases, phrases
from pytest_agentbench.reports.document import Document, Fact, Figure, Level, Note, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.markdown import lines
from pytest_agentbench.sweep.levels import Criteria, LevelVerdict, Sweep, SweepLevel, greatest, judgements, knee, short_blocks, verdicts


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


LEVELS, PAGE, PICTURE = "levels.csv", "sweep.md", "sweep.png"
SCHEMA = "agentbench-sweep/1"


def write(sweep: Sweep, terms: Criteria, directory: Path) -> Iterator[Path]:
    """Writes the files of a sweep into a new directory, and yields their paths.

    Some are our own: a report, levels.csv, sweep.json and, with matplotlib, a picture. The others are those that the benchmark script
    of the NeMo Agent Toolkit writes.
    """
    heading = Heading.of(sweep.suite, sweep.run, next(iter(sweep.run.suites)))
    write_benchmark(heading, [(level.concurrency, level.throughput) for level in sweep.levels], directory)
    judged = judgements(sweep, terms)
    rows = [row(sweep, level, each) for level, each in zip(sweep.levels, judged, strict=True)]
    write_rows(directory / LEVELS, [*rows[0]], ([*each.values()] for each in rows))
    picture = PICTURE if find_spec("matplotlib") else ""
    if picture:
        from pytest_agentbench.plots.comparisons import draw_sweep

        draw_sweep(sweep.operations, judged, terms, directory / picture)
    page = "\n".join(lines(document(sweep, judged, terms, picture), Level.VERBOSE)) + "\n"
    (directory / PAGE).write_text(page, encoding="utf-8")
    (directory / "sweep.json").write_text(json.dumps(as_json(sweep, judged, terms, rows), indent=2) + "\n", encoding="utf-8")
    yield from sorted(directory.iterdir())


def row(sweep: Sweep, level: SweepLevel, judged: LevelVerdict) -> Json:
    """Returns the row of a concurrency level in levels.csv, as column -> value."""
    share = judged.share
    return {
        "concurrency": level.concurrency,
        "rollouts": len(level.part.rollouts),
        **{status: level.statuses[status] for status in ("agent_error", "infra_error")},
        "calls": len(level.part.calls),
        "failed_calls": level.failed_calls,
        **{name: level.part.value(name) for name in ("rollouts_per_hour", "output_tokens_per_s")},
        **{f"{metric}_p{q}_ms": level.latency(metric, q) for metric in ("ttft", "tpot", "e2e") for q in (50, 95)},
        "good_share": share.mean if share else None,
        "good_share_low": share.low if share else None,
        "good_share_high": share.high if share else None,
        "quality": sweep.quality(level),
        "quality_change": judged.quality.estimate if judged.quality else None,
        "quality_change_low": judged.quality.low if judged.quality else None,
        "quality_change_high": judged.quality.high if judged.quality else None,
        "verdict": judged.verdict,
    }


def as_json(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria, rows: Sequence[Json]) -> Json:
    """Returns the content of sweep.json."""
    sustained, bend = greatest(verdicts(judged)), knee(sweep.operations)
    return {
        "schema": SCHEMA,
        "run": sweep.run.id,
        "suite": sweep.suite,
        "backend": sweep.run.backend.name,
        "score": sweep.score,
        "slo_ms": dict(terms.slo),
        "target": terms.target,
        "margin": terms.margin,
        "levels": [*rows],
        "warm_up": {str(level): count for level, count in sweep.warm_up.items()},
        "knee": bend.concurrency if bend else None,
        "greatest": {"shown": sustained.shown, "refuted": sustained.refuted, "undecided": [*sustained.undecided]},
    }
