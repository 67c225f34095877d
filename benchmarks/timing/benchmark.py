"""timing: errors of the tap's timestamps, measured with a server that records when it sends; the tap's CPU and added latency"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from benchmarks.measurement import BenchmarkError, Figure, Options, Result
from benchmarks.timing import plugin
from benchmarks.timing.errors import UNMEASURED, Costs, Measured, medians
from benchmarks.timing.rig import LEAST_CALLS, PACE, ROUNDS, SHAPES, Case, floor, run
from benchmarks.timing.table import LEGEND, fits, page, table
from benchmarks.truth import Truth, truth_server
from pytest_agentbench.errors import BackendError, InfraError

REPEAT = 3
STREAMS = (8, 48, 128, 256)
JUDGED = (48, 256)  # streams for which the errors have a target
AGENTS = {"whole": "whole answers", "sdk": "SDK, streaming"}
HOGS = 2

#: Targets by field of Measured: milliseconds, percent, and milliseconds per 1,000 tokens.
ERRORS = {"ttft_p99": 0.3, "chunk_p99": 0.1}
OTHERS = {"unclean": 0.1, "cpu": 45.0, "added_p50": 0.7}
BESIDE_HOGS = {"ttft_p99": 0.5, "cpu": 45.0}
WORDS = {"ttft_p99": "TTFT", "chunk_p99": "chunk", "unclean": "clean", "cpu": "CPU", "added_p50": "added"}
UNITS = {"unclean": "% of chunks", "cpu": "ms/1k tokens"}

#: What not even a busy machine explains, where only 48 streams are tried.
GROSS = {"ttft_p99": 50.0, "chunk_p99": 25.0, "unclean": 5.0}


@dataclass(frozen=True)
class Row:
    """One row of the table: the medians of several runs of one case."""

    streams: int
    shape: str
    agents: str
    limits: Mapping[str, float]
    medians: Measured
    floor: Costs = UNMEASURED  # of a relay that does nothing, where agents stream
    group: str = "timing"  # of the figures in which only the worst row is shown

    @property
    def names(self) -> tuple[str, str, str]:
        return str(self.streams), self.shape, self.agents

    @property
    def verdict(self) -> str:
        return fits(
            {WORDS[name]: getattr(self.medians, name) for name in self.limits}, {WORDS[name]: limit for name, limit in self.limits.items()}
        )


def measure(options: Options) -> Result:
    try:
        with truth_server(f"truth/{PACE}") as truth:
            rows = [*measured_rows(truth, options)]
    except (BackendError, InfraError) as error:  # a process of ours died, or refuses, and says how
        raise BenchmarkError(str(error)) from error
    text = table([(row.names, row.medians, row.floor, row.verdict) for row in rows])
    notes = remarks(rows, options)
    priority = f"The truth server ran {'under SCHED_FIFO' if truth.realtime else 'like all else'}; tap and agents ran at ordinary priority."
    if options.table is not None:
        options.table.write_text(page(command(options), text, notes, priority), encoding="utf-8")
    return Result([*figures(rows)], [priority, *notes], text, tuple(gross(rows)) if options.quick else ())


def cases(options: Options) -> Iterator[Case]:
    """Yields the cases to run (see `rig.Case`), without the sessions of the whole plugin."""
    if options.quick:
        yield from (Case(48, client=client) for client in AGENTS)
        return
    wanted = options.streams or STREAMS
    for streams in wanted:
        yield from (Case(streams, client=client) for client in AGENTS)
        if streams in JUDGED:
            yield from (Case(streams, shape) for shape in SHAPES if shape != "plain")
    if 48 in wanted:
        yield from (Case(48, client=client, hogs=HOGS) for client in AGENTS)


def measured_rows(truth: Truth, options: Options) -> Iterator[Row]:
    repeat = repeats(options)
    startups: list[float] = []
    for case in cases(options):
        runs, floors = list[Measured](), list[Costs]()
        for _ in range(repeat):
            runs.append(run(case, truth))
            if case.client == "sdk":  # streams pass through any relay; whole answers are made of them by the tap alone
                floors.append(floor(case, truth))
        startups += [each.startup for each in runs if each.startup is not None]
        beside, group = (f" beside {case.hogs} hogs", "timing.hogs") if case.hogs else ("", "timing")
        found = medians(Measured, runs), medians(Costs, floors)
        yield progress(Row(case.streams, case.shape, AGENTS[case.client] + beside, limits_of(case), *found, group))
    if not options.quick and plugin.IN_FLIGHT in (options.streams or STREAMS):
        for name, arguments in plugin.WAYS.items():
            runs = [plugin.run(arguments, truth, startups) for _ in range(repeat)]
            yield progress(Row(plugin.IN_FLIGHT, "plain", name, {**ERRORS, **OTHERS}, medians(Measured, runs), group="timing.plugin"))


def repeats(options: Options) -> int:
    return options.repeat or (1 if options.quick else REPEAT)


def limits_of(case: Case) -> dict[str, float]:
    if case.hogs:
        return BESIDE_HOGS
    return {**ERRORS, **OTHERS} if case.streams in JUDGED else OTHERS


def progress(row: Row) -> Row:
    print(f"    {row.streams} streams, {row.shape}, {row.agents}: {row.verdict}", file=sys.stderr, flush=True)
    return row


def figures(rows: list[Row]) -> Iterator[Figure]:
    """Yields a figure for each target, from the row with the worst value. Rows with hogs and rows of the plugin have their own figures."""
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group]
        for field, word in WORDS.items():
            values = [(getattr(row.medians, field), row) for row in members if field in row.limits]
            if found := [(value, row) for value, row in values if value is not None]:
                value, row = max(found, key=itemgetter(0))
                yield Figure(f"{group}.{word}", value, UNITS.get(field, "ms"), row.limits[field], ", ".join(row.names))


def gross(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        for field, limit in GROSS.items():
            value = getattr(row.medians, field)
            if value > limit:
                yield f"{', '.join(row.names)}: {WORDS[field]} {value:.3g} where {limit:g} is already far too much"


def command(options: Options) -> str:
    """Returns the command line that makes the same table."""
    words = ["timing", *(["--quick"] if options.quick else []), *(["--streams", *map(str, options.streams)] if options.streams else [])]
    repeat = ["--repeat", str(options.repeat)] if options.repeat else []
    return " ".join(["python -m benchmarks", *words, *repeat, f"--table {options.table}"])


def targets() -> str:
    judged = " and ".join(map(str, JUDGED))
    errors = f"p99 of TTFT {ERRORS['ttft_p99']} and of chunks {ERRORS['chunk_p99']} at {judged} streams"
    others = f"clean {100 - OTHERS['unclean']} %, tap CPU {OTHERS['cpu']:g}, added {OTHERS['added_p50']}"
    return f"Targets: {errors}; {others}; beside hogs only p99 of TTFT, {BESIDE_HOGS['ttft_p99']}, and tap CPU."


def remarks(rows: list[Row], options: Options) -> list[str]:
    """Returns notes that explain the table: targets, load and columns."""
    startup = medians(Measured, [row.medians for row in rows]).startup or 0
    return [
        f"Medians of {repeats(options)} runs; errors in ms, whatever their sign.",
        targets(),
        "All calls are labelled as Dynamo's are: the tap adds a header, and fields to every body.",
        f"Every stream makes {ROUNDS} calls, more where {LEAST_CALLS} are not reached, one after the other: {PACE} (ms; ttft uniform).",
        *LEGEND,
        f"Tap CPU: ms per 1,000 tokens, until the records are handed over; the {startup:.0f} ms that a tap takes to start are left out.",
    ]
