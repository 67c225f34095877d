"""Writes benchmarks/hints-results.md: the table of learnt and static hints, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.hints.blocks import FIGURES, Block, interval_of, ratio_of
from benchmarks.hints.project import ARMS, BASE, PROFILE, STATIC, WORKERS
from pytest_agentbench.stats.means import Interval

ROUTERS: Mapping[str, str] = {
    "dynamo": "Dynamo's own, policy `kv-queue` with `--router-track-output-blocks`, which makes use of `osl`",
    "thompson": "the Thompson-sampling router with the preset `sticky`, which makes use of all three hints",
}
FORMS = ("{:.2f}", "{:.0f}", "{:.0f}")  # of the figures


@dataclass(frozen=True)
class Measured:
    """The results of all arms at one router, from one session."""

    router: str
    blocks: Mapping[str, Sequence[Block]]  # by arm, in the order of time
    accuracy: Mapping[str, str]  # arm -> how right its hints were
    judgement: str  # of the stopwatch on the session's timings
    surroundings: str  # what else the machine did


def table(measured: Sequence[Measured]) -> str:
    """Returns a Markdown table with a row for each arm at each router."""
    head = f"| router | hints | session p50, s | x `{BASE}` | TTFT mean, ms | x `{BASE}` | TTFT p95, ms | x `{BASE}` |"
    return "\n".join((head, "| --- | --- | --- | --- | --- | --- | --- | --- |", *(row for each in measured for row in _rows(each))))


def page(measured: Sequence[Measured], made: str) -> str:
    """Returns the page. `made` is a sentence on command and machine."""
    routers = "\n".join(f"- `{each.router}`: {ROUTERS[each.router]}." for each in measured)
    accuracy = "\n".join(f"- `{each.router}`, `{arm}`: {sentence}" for each in measured for arm, sentence in each.accuracy.items())
    circumstances = "\n".join(f"- `{each.router}`: {each.surroundings}; timings {each.judgement}." for each in measured)
    pairs = len(measured[0].blocks[BASE])
    static = ", ".join(f"{name}: {value}" for name, value in STATIC.items())
    return f"""# Learnt hints and static ones

{made}
The suite `sessions` before {WORKERS} workers of Dynamo's mocker with the speed of `{PROFILE}`. Routers:

{routers}

Arms, which take turns in one session, {pairs} blocks each after a first one that is left out:

- `static`: `{static}`, the defaults of the NeMo Agent Toolkit's client.
- `learnt`: the table that `agentbench hints learn` made from a run with other sessions (another seed).
- `none`: only the id of the session.

{table(measured)}

Means over blocks with 95 % intervals, Student's t. A ratio is the geometric mean of the ratios of block to block; all arms run the same
sessions right after each other, with prompts that no cache has. An interval that contains 1 shows no difference.

How right the hints were:

{accuracy}

The machine meanwhile:

{circumstances}
"""


def _rows(measured: Measured) -> Iterator[str]:
    base = measured.blocks[BASE]
    for arm in ARMS:
        blocks, cells = measured.blocks[arm], []
        for figure, form in zip(FIGURES, FORMS, strict=True):
            ratio = "" if arm == BASE else "{:.2f} ({:.2f} to {:.2f})".format(*ratio_of(blocks, base, figure))
            cells += [_told(interval_of(blocks, figure), form), ratio]
        yield f"| {measured.router} | `{arm}` | {' | '.join(cells)} |"


def _told(interval: Interval, form: str) -> str:
    if interval.mean is None:
        return "not measured"
    if interval.low is None or interval.high is None:
        return form.format(interval.mean)
    return f"{form.format(interval.mean)} ({form.format(interval.low)} to {form.format(interval.high)})"
