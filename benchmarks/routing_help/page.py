"""Writes the page with the results of the comparison: a table for each condition, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.routing_help.engines import AT_ONCE, CACHE, CONDITIONS, FIRST, SLOW, SLOWER, SPEED, Condition
from benchmarks.routing_help.load import ARRIVAL_S, CALLS, SESSIONS, THINK_S
from benchmarks.routing_help.results import ArmResult, Blocks, results
from benchmarks.routing_help.routers import ARMS
from pytest_agentbench.stats.decisions import FAIL, PASS, Decision

FIRST_ARM = next(iter(ARMS))
AFFINITY = ("session affinity", "sticky least loaded")  # arms that keep sessions on an engine


def page(blocks: Mapping[str, Blocks], circumstances: Mapping[str, str], command: str, machine: str) -> str:
    """Returns the page. `blocks` and `circumstances` have an entry for each condition."""
    found = {condition.name: results(blocks[condition.name]) for condition in CONDITIONS if condition.name in blocks}
    rounds = min(len(each) for arms in blocks.values() for each in arms.values())
    arms = "\n".join(f"- `{name}`: {about}." for name, (_, about) in ARMS.items())
    parts = "\n\n".join(_part(condition, found[condition.name]) for condition in CONDITIONS if condition.name in found)
    others = "\n".join(f"- {condition.title}: {circumstances[condition.name]}." for condition in CONDITIONS if condition.name in found)
    return f"""# Where the Thompson router helps

Made by `{command}` {machine}.

Six routers stand before the same {len(FIRST)} built-in engines. The engines compute nothing: they sleep for the time that an answer takes.

{arms}

- **Load:** each block has {SESSIONS} synthetic sessions of {CALLS[0]} to {CALLS[1]} calls from [the suite `sessions`](../scenarios/sessions/README.md), with pauses of {THINK_S:g} s on average. They begin within {ARRIVAL_S:g} s,
  at times that do not depend on the answers (an open loop). Routers get the id of the session and, as far as they read them, the hints of the Thompson router: number of calls, length of answers, pauses.
- **Engines:** {SPEED["ttft_ms"]:g} ms to the first token, {SPEED["itl_ms"]:g} ms for each further one, {SPEED["prefill_ms_per_1k"]:g} ms for each thousand prompt tokens that are not cached, one prompt at a time; {AT_ONCE} requests at a time;
  a KV cache of {CACHE["kv_blocks"]} blocks of {CACHE["block_size"]} tokens, about 1.5 times what its share of the sessions needs.
- **Blocks:** in each round, every router gets the same sessions once, one router after the other, with empty caches. The order is reversed from round to round, and rotated. A first round is left out, so that routers have learnt
  something before. Routers keep what they have learnt from block to block. There were {rounds} rounds in each condition.
- **Numbers:** a session's time is that from its beginning to its last answer, pauses included. `p50` is the mean of the medians of the blocks, with a 95 % bootstrap-t interval. The ratio is that of `{FIRST_ARM}` to the arm of the row: below 1,
  `{FIRST_ARM}` is faster. Its interval is Student's t of {rounds} pairs of blocks, adjusted for five comparisons (Holm). Sessions with a failed call have no time.

{parts}

## What this page cannot show

- The engines are a model of real ones: hits save time, prompts wait for each other, and the batch has a limit. Long answers do not slow down prompts, and times do not vary by themselves.
- Routers learn from a hundred calls a block. A deployment learns from more, and its engines change less often.
- Medians hide a slow engine that has a quarter of the sessions; that is what p90 is for.
- All processes and the load ran on one machine, which others used as well:

{others}
"""


def _part(condition: Condition, arms: Mapping[str, ArmResult]) -> str:
    findings = " ".join(_findings(condition, arms))
    table = "\n".join(_table(condition, arms))
    return f"## {condition.title}\n\n{table}\n\n{findings}"


def _table(condition: Condition, arms: Mapping[str, ArmResult]) -> Iterator[str]:
    engine = (
        "tokens at the slow engine"
        if condition.slow
        else "tokens at the engine that leaves"
        if condition.is_changing
        else "tokens at the fourth engine"
    )
    columns = (
        "arm",
        "session p50, s",
        f"p50 of `{FIRST_ARM}` / this",
        "session p90, s",
        f"p90 of `{FIRST_ARM}` / this",
        "cached",
        engine,
        "failed calls",
    )
    yield f"| {' | '.join(columns)} |"
    yield f"|---{'|---' * (len(columns) - 1)}|"
    for name, arm in arms.items():
        interval = f" ({arm.interval.low:.2f} to {arm.interval.high:.2f})" if arm.interval else ""
        cells = (f"`{name}`", f"{arm.p50:.2f}{interval}", _ratio(arm.ratio), f"{arm.p90:.2f}", _ratio(arm.ratio_p90))
        yield f"| {' | '.join(cells)} | {arm.hit_ratio:.0%} | {arm.at_slow:.0%} | {arm.failed} of {arm.calls} |"


def _ratio(decision: Decision | None) -> str:
    if decision is None:
        return ""
    if decision.estimate is None or decision.low is None or decision.high is None:
        return decision.reason
    return f"{decision.estimate:.2f} ({decision.low:.2f} to {decision.high:.2f}){', faster' if decision.verdict == PASS else ', slower' if decision.verdict == FAIL else ''}"


def _findings(condition: Condition, arms: Mapping[str, ArmResult]) -> Iterator[str]:
    """Yields the sentences that follow from the table."""
    for name in AFFINITY:
        if name in arms:
            for quantile, decision in (("median", arms[name].ratio), ("p90", arms[name].ratio_p90)):
                yield f"By the {quantile} of its sessions, `{FIRST_ARM}` is {_verdict(decision)} `{name}`."
    if condition.slow:
        mine = arms[FIRST_ARM].at_slow
        yield f"It sends {mine:.0%} of the prompt tokens to the engine number {SLOW + 1}, which takes {SLOWER} times as long as the others."


def _verdict(decision: Decision | None) -> str:
    if decision is not None and decision.verdict == PASS:
        return "faster than"
    if decision is not None and decision.verdict == FAIL:
        return "**slower** than"
    return "neither shown to be faster nor slower than"
