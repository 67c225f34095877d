"""Where the time of a run went, for people: `agentbench show RUN --profile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.profile import Profile
from pytest_agentbench.profile.concurrency import Concurrency, ConcurrencyLevel, Latencies, Spike
from pytest_agentbench.profile.prefixes import BLOCK, Prefix, PromptReuse
from pytest_agentbench.profile.slowest import Explanation
from pytest_agentbench.profile.tree import Branch, top
from pytest_agentbench.reports.columns import columns
from pytest_agentbench.reports.numbers import number, percent
from pytest_agentbench.reports.sections.serving import CALL_COLUMNS, call_cells
from pytest_agentbench.reports.terminal import TerminalReporter, cell_text

TextRows = Sequence[Sequence[str]]


def write_profile(terminal: TerminalReporter, profile: Profile) -> None:
    """All sections."""
    sections = (
        ("slowest LLM calls", _slowest(profile)),
        ("call tree", _tree(profile.tree)),
        ("concurrency spikes", _concurrency(profile.concurrency)),
        ("common prompt prefixes", _prompts(profile.prompts)),
    )
    for title, lines in sections:
        terminal.write_sep("-", title)
        for line in lines:
            terminal.write_line(line)


def _slowest(profile: Profile) -> Iterator[str]:
    if missing := profile.calls - profile.timed:
        yield f"of {missing} of {profile.calls} calls nobody knows when they were"
    if not profile.slowest:
        yield "no call whose time is known"
        return
    table = [*_aligned([[*(column.title for column in CALL_COLUMNS), "in flight"], *map(_slow_row, profile.slowest)], left={1})]
    yield table[0]
    for line, each in zip(table[1:], profile.slowest, strict=True):
        yield line
        yield f"  {each.why}"


def _slow_row(each: Explanation) -> list[str]:
    cells = [cell_text(cell, column) for cell, column in zip(call_cells(each.call), CALL_COLUMNS, strict=True)]
    return [*cells, number(each.in_flight or None, 0)]


def _tree(tree: Sequence[Branch]) -> Iterator[str]:
    if not tree:
        yield "no rollout"
        return
    rows = [["", "count", "total s", "self s", "share"]]
    rows += [[f"{'  ' * (len(each.path) - 1)}{each.name}", *_branch_cells(each)] for each in tree]
    yield from _aligned(rows, left={0})
    yield ""
    if most := top(tree):
        yield "most time: " + "; ".join(f"{' > '.join(each.path[1:])} {number(each.total_s, 2)} s" for each in most)
    yield "Calls at the same time count twice in totals; self is what no call below covers."


def _branch_cells(branch: Branch) -> list[str]:
    return [f"{branch.count:,}", number(branch.total_s, 3), number(branch.self_s, 3), percent(branch.share)]


def _concurrency(concurrency: Concurrency | None) -> Iterator[str]:
    if concurrency is None:
        yield "no call whose time is known"
        return
    yield f"For 90 % of the time in which any call was in flight, {concurrency.usual} or fewer were; at the peak {concurrency.peak}."
    if concurrency.spikes:
        spikes = f"{concurrency.count} spike{'s' * (concurrency.count > 1)}, {percent(concurrency.share)} of that time"
        longest = f"; the longest {len(concurrency.spikes)}" if concurrency.count > len(concurrency.spikes) else ""
        yield f"More than {concurrency.usual}: {spikes}{longest}:"
        head = ["at s", "for ms", "in flight", "calls sent", "TTFT ms", "E2E ms"]
        yield from _aligned([head, *map(_spike_row, concurrency.spikes)])
        yield f"calls sent in spikes: {_latencies_text(concurrency.inside)}; outside: {_latencies_text(concurrency.outside)} (medians)"
    else:
        yield f"There were never more than {concurrency.usual}, so there is no spike."
    yield ""
    head = ["in flight", "of the time", "calls sent", "TTFT ms", "E2E ms"]
    yield from _aligned([head, *map(_level_row, concurrency.levels)])


def _spike_row(spike: Spike) -> list[str]:
    return [number(spike.start_s, 3), number(spike.duration_s * 1e3), str(spike.peak), *_latency_cells(spike.sent)]


def _level_row(level: ConcurrencyLevel) -> list[str]:
    span = str(level.least) if level.least == level.most else f"{level.least} to {level.most}"
    return [span, percent(level.share), *_latency_cells(level.sent)]


def _latency_cells(latencies: Latencies) -> list[str]:
    return [str(latencies.calls), number(latencies.ttft_ms), number(latencies.e2e_ms)]


def _latencies_text(latencies: Latencies) -> str:
    return f"{latencies.calls} calls, TTFT {number(latencies.ttft_ms)} ms, E2E {number(latencies.e2e_ms)} ms"


def _prompts(reuse: PromptReuse) -> Iterator[str]:
    if reuse.unknown:
        yield f"of {reuse.unknown} calls the transcripts do not tell the prompts; they are not in here"
    if not reuse.calls:
        yield "no call whose prompt is known"
        return
    share = reuse.reusable_tokens / reuse.prompt_tokens if reuse.prompt_tokens else None
    whole = f"{number(reuse.prompt_tokens, 0)} prompt tokens of {reuse.calls} calls"
    yield f"A perfect prefix cache would have {number(reuse.reusable_tokens, 0)} ({percent(share)}) of {whole}:"
    between = reuse.reusable_tokens - reuse.within_tokens
    yield f"  {number(reuse.within_tokens, 0)} that the same rollout had asked before, {number(between, 0)} that another one had."
    yield _hits(reuse)
    yield from _prefixes(reuse.prefixes)
    counts = "fitted to the server's counts" if reuse.counted else "4 characters a token, for no server counted"
    yield f"Estimates, from transcripts in blocks of {BLOCK} characters, {counts}; tools and template count as one beginning of all calls."


def _hits(reuse: PromptReuse) -> str:
    if reuse.cached_tokens is None:
        return "The server does not say what it had in its cache."
    share = reuse.cached_tokens / reuse.cached_of if reuse.cached_of else None
    return f"The server had {number(reuse.cached_tokens, 0)} ({percent(share)}) of {number(reuse.cached_of, 0)} in its cache, as it says."


def _prefixes(prefixes: Sequence[Prefix]) -> Iterator[str]:
    if not prefixes:
        yield "No two rollouts begin alike."
        return
    head = ["tokens", "rollouts", "calls", "suite", "model", "ends with"]
    rows = [
        [number(each.tokens, 0), str(each.rollouts), str(each.calls), each.group, each.model, each.ends or "(before the transcript)"]
        for each in prefixes
    ]
    yield from _aligned([head, *rows], left={3, 4, 5})


def _aligned(rows: TextRows, left: set[int] | frozenset[int] = frozenset()) -> Iterator[str]:
    """A table whose columns are as wide as they have to be; numbers stand on the right."""
    widths = [max(map(columns, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell + " " * (width - columns(cell)) if place in left else " " * (width - columns(cell)) + cell
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
