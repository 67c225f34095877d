"""Writes benchmarks/routing-results.md: the table of routing under KV pressure, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.pressure.cells import Cell
from benchmarks.pressure.conversation import DOCUMENT, INSTRUCTIONS, RESULT, TOOL_S
from benchmarks.pressure.project import ANSWER, ARMS, BASE, BLOCK, BLOCKS, SPEEDUP, STEPS, WORKERS
from pytest_agentbench.stats.means import Interval

WAYS: Mapping[str, str] = {
    "round_robin": "calls go to the workers in turns",
    "kv": "Dynamo's KV router: a call goes where most of its prompt is cached and little is to be done",
    "thunderagent": "Dynamo's ThunderAgent policy: a task is a program, and programs are paused while the caches are too small for all",
}


@dataclass(frozen=True)
class Level:
    """The results of all arms at one concurrency, from one session."""

    concurrency: int
    cells: Mapping[str, Cell]  # by arm
    judgement: str  # of the stopwatch on the session's timings
    surroundings: str  # what else the machine did


def table(levels: Sequence[Level]) -> str:
    """Returns a Markdown table with a row for each arm at each concurrency."""
    return "\n".join((*_head(), *(row for level in levels for row in _rows(level))))


def page(levels: Sequence[Level], made: str) -> str:
    ways = "\n".join(f"- `{arm}`: {WAYS[arm]}." for arm in ARMS)
    circumstances = "\n".join(f"  - {level.concurrency} in flight: {level.surroundings}; timings {level.judgement}." for level in levels)
    return f"""# Routing when the KV cache is too small

{made}
The real NVIDIA Dynamo, frontend and routers, before {WORKERS} workers of its mocker, which say random words at the pace of a GPU
({SPEEDUP} times that of the mocker's own profile). No model, no GPU. The three ways of routing are arms of one session and take turns:

{ways}

A task is a conversation of {STEPS} steps, a call and then a tool each: {INSTRUCTIONS} words that all share,
{DOCUMENT} to {2 * DOCUMENT} of its own, answers of {ANSWER} tokens, tools of {TOOL_S[0]:g} to {TOOL_S[1]:g} s that
say {RESULT[0]} to {RESULT[1]} words. Each worker's cache has {BLOCKS} blocks of {BLOCK} tokens.
So eight tasks fit, and of sixteen or thirty-two the caches cannot keep all that will be asked for again.
A block is all tasks once, half as many again as are in flight, and begins with prompts that no cache has (a salt). Its arm's first block
is left out.

{table(levels)}

Means over blocks with 95 % intervals, Student's t. The ratio is the geometric mean of the ratios of block to block, since the arms ran
the same tasks right after each other. LLM calls/min are over the time from the first call of a block to its last
token, its end with few in flight included. Hits are the share of prompt tokens that no worker computed, by the forward passes that the
workers write down: a prompt that is preempted is computed twice. TTFT is the client's: where a program is paused its wait is in it.

Hits and LLM calls/min are to be read together. A router that pauses programs keeps their caches, which is seen in the hits, and lets tasks
wait, which is seen in TTFT. Which of both weighs more depends on what it costs to compute a prompt again: little, by the mocker's profile.

## What this page cannot show

- The mocker's times are a profile, not a GPU's under this load, and its caches are small so that little suffices to fill them. What is
  large here may be small where tokens are cheap to compute again, and other tasks have other tools.
- ThunderAgent's policy has the parameters of `backends/dynamo-policies/thunderagent.yaml`: it looks at its programs twice a second.
- Everything ran on one machine with its client:
{circumstances}
"""


def _head() -> Iterator[str]:
    yield f"| in flight | routing | LLM calls/min | x `{BASE}` | prefix cache hits | TTFT p95 |"
    yield "| ---: | --- | --- | --- | --- | --- |"


def _rows(level: Level) -> Iterator[str]:
    for arm, cell in level.cells.items():
        ratio = "{:.2f} ({:.2f} to {:.2f})".format(*cell.ratio) if cell.ratio else ""
        measured = (_told(cell.calls_per_minute, "{:.0f}"), ratio, _told(cell.hit_ratio, "{:.3f}"), _told(cell.ttft_p95, "{:.2f}", " s"))
        yield f"| {level.concurrency} | `{arm}` | {' | '.join(measured)} |"


def _told(interval: Interval, form: str, unit: str = "") -> str:
    if interval.mean is None:
        return "not measured"
    if interval.low is None or interval.high is None:
        return f"{form.format(interval.mean)}{unit}"
    return f"{form.format(interval.mean)} ({form.format(interval.low)} to {form.format(interval.high)}){unit}"
