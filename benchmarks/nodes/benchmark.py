"""nodes: node workers: rate with 1 to 8 of them, cost of a rollout, leases per second of a pool, and memory in 10,000 rollouts"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.endurance import BARE_TEST, LIMIT_GROWTH, ROLLOUTS, SUITE_TEST, looks, settled
from benchmarks.measurement import BenchmarkError, Figure, Options, Result, Surroundings, run_pytest
from benchmarks.nodes import pool_alone, sessions
from benchmarks.nodes.pool_alone import Step
from benchmarks.nodes.sessions import Arm, Rate
from benchmarks.timing.table import processor
from benchmarks.workplace import BARE, workplace

NODES, WAVES, QUICK_NODES, QUICK_WAVES = (2, 4, 8), 6, (2,), 3
LINEAR = 1 / 0.9  # times as long as N nodes take in theory

SLOTS, LEASES = (4, 8, 16, 32, 64, 128), 3000
QUICK_SLOTS, QUICK_LEASES = (8, 64), 1000
POOL_NODES = 8
LATE_MS = 50.0  # p99 of the time that a slot stays free, above which a pool has too many slots
BUSY_SLOTS, BUSY_S = 1000, 5.0  # slots whose attempts take some time, and how long on average
LIMIT_LEASE = 2.0  # ms of CPU of the pool for each lease

PAIRS, FEW, MANY, QUICK_MANY = 3, 1, 4, 2  # hundreds of rollouts
LIMIT_OVERHEAD = 1.5


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: a table of its own."""

    figures: list[Figure]
    lines: list[str]  # Markdown


def measure(options: Options) -> Result:
    parts = []
    for name, part in (("Scaling", _scaling), ("A rollout's cost", _overhead), ("Leases of a pool", _leases), ("A long session", _long)):
        around = Surroundings()
        made = part(options)
        parts.append(Part(made.figures, [f"## {name}", "", *made.lines, "", f"Measured in {around}.", ""]))
    text = "\n".join(line for part in parts for line in part.lines)
    if options.table is not None:
        extra = " --quick" * options.quick + (f" --repeat {options.repeat}" if options.repeat else "")
        versions = f"{os.cpu_count()} cores ({processor()}), Linux {platform.release()}, Python {platform.python_version()}"
        made_by = f"Made by `python -m benchmarks nodes{extra} --table {options.table}` on {versions}."
        options.table.write_text(f"# Node workers\n\n{made_by}\n\n{text}", encoding="utf-8")
    return Result([figure for part in parts for figure in part.figures], [], text)


def _scaling(options: Options) -> Part:
    """Compares N node workers with the mean of sessions with one, before and after them."""
    numbers, waves = (QUICK_NODES, QUICK_WAVES) if options.quick else (NODES, WAVES)
    before = sessions.rate(1, waves)
    several = [sessions.rate(number, waves) for number in numbers]
    after = before if options.quick else sessions.rate(1, waves)
    one = (before.per_s + after.per_s) / 2
    rates = [before, *several, *([] if options.quick else [after])]
    free = [rate for rate in several if not rate.is_cpu_bound]
    figures = [Figure(f"nodes.linear.{rate.nodes}", one * rate.nodes / rate.per_s, "x", LINEAR, f"CPU {rate.cpu:.0%}") for rate in free]
    return Part(
        figures,
        [
            (
                f"Rollouts of {sessions.CALLS} calls, each answered after {sessions.ANSWER_MS / 1e3:g} s, {sessions.SLOTS} slots a node "
                "worker, all on this machine, in the time in which all of them have work. Relative: to N times the rate of one."
            ),
            "",
            "| node workers | rollouts/s | relative | CPU of the machine | |",
            "| --- | --- | --- | --- | --- |",
            *(_rate_row(rate, one) for rate in rates),
        ],
    )


def _rate_row(rate: Rate, one: float) -> str:
    bound = "CPU-bound" if rate.is_cpu_bound else ""
    return f"| {rate.nodes} | {rate.per_s:.2f} | {rate.per_s / (one * rate.nodes):.2f} | {rate.cpu:.0%} | {bound} |"


def _overhead(options: Options) -> Part:
    many = QUICK_MANY if options.quick else MANY
    pairs = [sessions.overhead_pair(FEW, many) for _ in range(options.repeat or (1 if options.quick else PAIRS))]
    own, whole = (statistics.median(_ratios(pairs, value)) for value in ("own_s", "each_s"))
    return Part(
        [Figure("nodes.overhead", own, "x", LIMIT_OVERHEAD, f"{whole:.2f}x with the engine")],
        [
            (
                f"CPU of all processes for each rollout of 3.5 calls: sessions of {many}00 rollouts less sessions of {FEW}00, so that "
                f"start and end do not count; {sessions.IN_FLIGHT} in flight, locally or on {sessions.OVERHEAD_NODES} node workers of this "
                f"machine. Median ratio {own:.2f}, with the engine {whole:.2f}."
            ),
            "",
            "| pair | local, ms | with node workers, ms | ratio | local with engine, ms | with node workers and engine, ms | ratio |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(_pair_row(number, *pair) for number, pair in enumerate(pairs, 1)),
        ],
    )


def _ratios(pairs: Sequence[tuple[Arm, Arm]], value: str) -> Iterator[float]:
    for local, nodes in pairs:
        yield getattr(nodes, value) / getattr(local, value)


def _pair_row(number: int, local: Arm, nodes: Arm) -> str:
    own = f"{local.own_s * 1e3:.1f} | {nodes.own_s * 1e3:.1f} | {nodes.own_s / local.own_s:.2f}"
    whole = f"{local.each_s * 1e3:.1f} | {nodes.each_s * 1e3:.1f} | {nodes.each_s / local.each_s:.2f}"
    return f"| {number} | {own} | {whole} |"


def _leases(options: Options) -> Part:
    """Gives pools more and more slots whose attempts end at once, and finds where slots stay free for too long."""
    slots, leases = (QUICK_SLOTS, QUICK_LEASES) if options.quick else (SLOTS, LEASES)
    with workplace() as place:
        record = sessions.record_of(place)
        steps = [pool_alone.run(record, leases, min(number, POOL_NODES), number) for number in slots]
        busy = [] if options.quick else [pool_alone.run(record, leases, POOL_NODES, BUSY_SLOTS, BUSY_S)]
    kept = [step for step in steps if step.p99_ms <= LATE_MS]
    best = max((step.per_s for step in kept), default=0.0)
    cpu = statistics.median(step.pool_cpu_ms for step in (*steps, *busy))
    return Part(
        [Figure("nodes.lease", cpu, "ms", LIMIT_LEASE, f"of CPU; {best:.0f} leases/s")],
        [
            (
                f"A pool with {POOL_NODES} scripted node workers in one process, which answer a lease at once with 15 kB, and "
                f"a controller that only acknowledges records. A slot is free from the end of an attempt until the next lease. {best:.0f} "
                f"leases per second is the most of those with a p99 of at most {LATE_MS:.0f} ms. In a row with {BUSY_SLOTS} slots "
                f"an attempt takes {BUSY_S:g} s on average."
            ),
            "",
            "| slots | leases/s | slot is free, p50 ms | p99 ms | CPU of the pool for a lease, ms | of the script, ms |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_step_row(step) for step in (*steps, *busy)),
        ],
    )


def _step_row(step: Step) -> str:
    cpu = f"{step.pool_cpu_ms:.2f} | {step.script_cpu_ms:.2f}"
    return f"| {step.slots} | {step.per_s:.0f} | {step.p50_ms:.1f} | {step.p99_ms:.1f} | {cpu} |"


def _long(options: Options) -> Part:
    """Looks at the memory of pool and controller while scripted node workers make many rollouts."""
    if options.quick:
        return Part([], ["Left out, because it takes minutes."])
    with workplace() as place:
        record = sessions.record_of(place)
        session = sessions.long_session(place, record, ROLLOUTS, SUITE_TEST)
        ours = looks(place)
        place.write("bare/test_bare.py", BARE_TEST)
        run_pytest(place.root, *BARE)
        bare = looks(place)
    start, end = settled(session.samples)
    pool = (start.resident["pool"], end.resident["pool"])
    if not all(pool):
        raise BenchmarkError("the memory of the pool could not be read")
    expected = bare[1] - bare[0]
    return Part(
        [
            Figure("nodes.pool", pool[1] / pool[0], "x", LIMIT_GROWTH, f"{pool[0]:.0f} -> {pool[1]:.0f} MB"),
            Figure("nodes.pytest", (ours[1] - expected) / ours[0], "x", LIMIT_GROWTH, f"{ours[0]:.0f} -> {ours[1]:.0f} MB"),
        ],
        [
            (
                f"{ROLLOUTS} rollouts with records of 15 kB from {sessions.LONG_NODES} scripted node workers with {sessions.SLOTS} slots "
                f"each, read by {ROLLOUTS} tests."
            ),
            "",
            f"- Journal: {session.per_s:.0f} records per second. {session.cost.wall_s:.0f} s in all.",
            f"- Memory of the pool from {start.rollouts} to {end.rollouts} rollouts: {pool[0]:.0f} -> {pool[1]:.0f} MB.",
            (
                f"- Memory of pytest with controller: {ours[0]:.0f} -> {ours[1]:.0f} MB. A bare pytest grows by {expected:.0f} MB, because "
                "it keeps each report."
            ),
            (
                f"- CPU for each rollout: {session.pool_cpu_s / ROLLOUTS * 1e3:.1f} ms of the pool, "
                f"{session.cost.cpu_s / ROLLOUTS * 1e3:.1f} ms of the whole session without node workers."
            ),
        ],
    )
