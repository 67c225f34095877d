"""A sweep for people and for scripts: a line for each level, the knee, and the greatest level that is good enough."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.nat_benchmark import Heading, write_benchmark
from pytest_agentbench.gate.ab import mean_of
from pytest_agentbench.gate.values import samples
from pytest_agentbench.records import EVALUABLE, Json
from pytest_agentbench.reports.markdown import prose, table
from pytest_agentbench.reports.numbers import number, percent
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS
from pytest_agentbench.stats.percentiles import percentile
from pytest_agentbench.sweep.knee import Operation, knee
from pytest_agentbench.sweep.levels import Level, Sweep, short_blocks
from pytest_agentbench.sweep.verdict import Criteria, LevelVerdict, SustainedRange, greatest, judgements, verdicts

LEVELS, PAGE, PICTURE = "levels.csv", "sweep.md", "sweep.png"
SCHEMA = "agentbench-sweep/1"
WORDS: Mapping[str, str] = {PASS: "good enough", FAIL: "not good enough", INCONCLUSIVE: "cannot tell"}


def write(sweep: Sweep, terms: Criteria, directory: Path) -> Iterator[Path]:
    """Writes all files of a sweep into a directory, which is made: those of the original's benchmark script, and our own."""
    heading = Heading.of(sweep.suite, sweep.run, next(iter(sweep.run.suites)))
    write_benchmark(heading, [(level.concurrency, level.throughput) for level in sweep.levels], directory)
    judged = judgements(sweep, terms)
    rows = [row(sweep, level, each) for level, each in zip(sweep.levels, judged, strict=True)]
    write_rows(directory / LEVELS, [*rows[0]], ([*each.values()] for each in rows))
    if find_spec("matplotlib"):
        from pytest_agentbench.plots.sweep import draw

        draw(operations(sweep), judged, terms, directory / PICTURE)
    (directory / PAGE).write_text("\n".join(markdown(sweep, judged, terms, directory)) + "\n", encoding="utf-8")
    (directory / "sweep.json").write_text(json.dumps(as_json(sweep, judged, terms, rows), indent=2) + "\n", encoding="utf-8")
    yield from sorted(directory.iterdir())


def row(sweep: Sweep, level: Level, judged: LevelVerdict) -> Json:
    """A level as levels.csv has it; milliseconds, tokens per second, shares."""
    share = judged.share
    return {
        "concurrency": level.concurrency,
        "rollouts": len(level.part.rollouts),
        **{status: level.statuses[status] for status in ("agent_error", "infra_error")},
        "calls": len(level.part.calls),
        "failed_calls": level.failed_calls,
        **{name: level.part.value(name) for name in ("rollouts_per_hour", "output_tokens_per_s")},
        **{f"{metric}_p{q}_ms": latency(level, metric, q) for metric in ("ttft", "tpot", "e2e") for q in (50, 95)},
        "good_share": share.mean if share else None,
        "good_share_low": share.low if share else None,
        "good_share_high": share.high if share else None,
        "quality": _quality(sweep, level),
        "quality_change": judged.quality.estimate if judged.quality else None,
        "quality_change_low": judged.quality.low if judged.quality else None,
        "quality_change_high": judged.quality.high if judged.quality else None,
        "verdict": judged.verdict,
    }


def latency(level: Level, metric: str, q: int) -> float | None:
    """Returns a percentile of a level's calls in milliseconds, however few they are."""
    return percentile(level.part.successful_calls[f"{metric}_ms"], q)


def operations(sweep: Sweep) -> list[Operation]:
    """Throughput and latency of the levels that have both."""
    measured = [(each, latency(each, "e2e", 50), each.part.value("output_tokens_per_s")) for each in sweep.levels]
    return [Operation(level.concurrency, rate, latency) for level, latency, rate in measured if latency and rate]


def _quality(sweep: Sweep, level: Level) -> float | None:
    return mean_of(samples(level.trials, sweep.score, sweep.scale))


def lines(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria) -> Iterator[str]:
    """For a terminal: the table, and what follows from it."""
    header, rows = cells(sweep, judged)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for each in (header, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(each, widths, strict=True)).rstrip()
    yield ""
    yield from conclusions(sweep, judged, terms)


def cells(sweep: Sweep, judged: Sequence[LevelVerdict]) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    latencies = ("ttft p50 ms", "p95", "e2e p50 ms", "p95")
    header = ["in flight", "rollouts", "failed calls", "rollouts/h", "tokens/s", *latencies, sweep.score, "good calls", ""]
    rows = []
    for level, each in zip(sweep.levels, judged, strict=True):
        share = each.share
        good = "" if share is None else f"{percent(share.mean)} ({percent(share.low)} to {percent(share.high)})"
        rows.append(
            [
                str(level.concurrency),
                str(len(level.part.rollouts)),
                str(level.failed_calls),
                *(number(level.part.value(name)) for name in ("rollouts_per_hour", "output_tokens_per_s")),
                *(number(latency(level, metric, q)) for metric in ("ttft", "e2e") for q in (50, 95)),
                number(_quality(sweep, level), 3),
                good,
                WORDS[each.verdict],
            ]
        )
    return header, rows


def conclusions(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria) -> Iterator[str]:
    """Sentences: the knee, the greatest level that is good enough, and what the numbers do not include."""
    yield from knee_text(operations(sweep))
    yield greatest_text(greatest(verdicts(judged)), terms)
    for level in sweep.levels:
        if lost := {status: count for status, count in level.statuses.items() if status not in EVALUABLE}:
            yield f"concurrency {level.concurrency}: {', '.join(f'{count} {status}' for status, count in lost.items())}"
    if sweep.run.plan.not_run:
        yield f"{sweep.run.plan.not_run} of {sweep.run.plan.rollouts} planned rollouts were not run"
    if dropped := sum(sweep.warm_up.values()):
        yield f"left out as warm-up: {dropped} rollouts, the first block of each level"
    if unwarmed := [str(level) for level, count in sweep.warm_up.items() if not count]:
        yield f"concurrency {', '.join(unwarmed)} had one block only, and no warm-up: what came first is in its numbers"
    yield from short_blocks(sweep)


def knee_text(levels: Sequence[Operation]) -> Iterator[str]:
    """Where it is, and when it may lie beyond what was measured; nothing of levels that have none."""
    if bend := knee(levels):
        beyond = "; no level beyond it was measured, and the knee may lie there" if bend == max(levels) else ""
        yield f"knee: {bend.concurrency} in flight, where tokens/s over the median duration of a call are the most{beyond}"


def terms_text(terms: Criteria) -> str:
    """What is asked of a level."""
    slo = ", ".join(f"{name} {number(value)} ms" for name, value in terms.slo.items())
    speed = f"{percent(terms.target)} of the calls within {slo}, and " if slo else ""
    return f"{speed}quality lower by no more than {terms.margin:g}"


def greatest_text(sustained: SustainedRange, terms: Criteria) -> str:
    """The answer with its interval."""
    criteria = terms_text(terms)
    if sustained.shown is None:
        return (
            f"no level is shown to be good enough ({criteria}); the smallest that is shown not to be: {sustained.refuted or 'none'}; "
            "more scenarios and trials make the intervals narrower"
        )
    refuted = f"{sustained.refuted} is not" if sustained.refuted else "none that was measured is shown not to be"
    between = f"; of {', '.join(map(str, sustained.undecided))} the data cannot tell" if sustained.undecided else ""
    return f"{sustained.shown} in flight is good enough, {refuted}{between} ({criteria})"


def markdown(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria, directory: Path) -> Iterator[str]:
    """sweep.md"""
    yield f"# Sweep of {prose(sweep.suite)} on {prose(sweep.run.backend.name)}"
    yield ""
    yield from (f"- {prose(sentence)}" for sentence in conclusions(sweep, judged, terms))
    yield ""
    yield from table(*cells(sweep, judged))
    yield ""
    if (directory / PICTURE).exists():
        yield f"![throughput against latency, and the share of good calls]({PICTURE})\n"
    yield (
        f"Run {prose(sweep.run.id)}. [levels.csv]({LEVELS}) has more columns; benchmark_results.csv, benchmark_report.md and "
        "analysis_*.txt are what run_concurrency_benchmark.sh of the NeMo Agent Toolkit's example writes, its "
        "wall clock being the time in which rollouts of the level ran."
    )


def as_json(sweep: Sweep, judged: Sequence[LevelVerdict], terms: Criteria, rows: Sequence[Json]) -> Json:
    """sweep.json"""
    sustained, bend = greatest(verdicts(judged)), knee(operations(sweep))
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
