"""Writes the page with the results of the comparison: a table for each condition, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.routing_help.engines import AT_ONCE, CACHE, CONDITIONS, FIRST, SLOWER, SPEED, Condition
from benchmarks.routing_help.load import ARRIVAL_S, CALLS, JOINS_AT, LEAVES_AT, SESSIONS, SHORT_CALLS, THINK_S
from benchmarks.routing_help.results import ArmResult, Blocks, results
from benchmarks.routing_help.routers import AFFINITY, ARMS
from pytest_agentbench.stats.decisions import FAIL, PASS, Decision

Circumstances = tuple[str, Mapping[str, float]]  # what else the machine did, and arm -> milliseconds that its router adds to a call

OWN = next(iter(ARMS))


def page(blocks: Mapping[str, Blocks], circumstances: Mapping[str, Circumstances], command: str, machine: str) -> str:
    """Returns the page. `blocks` and `circumstances` have an entry for each condition."""
    known = [condition for condition in CONDITIONS if condition.name in blocks]
    rounds = min(len(each) for arms in blocks.values() for each in arms.values())
    arms = "\n".join(f"- `{name}`: {about}" for name, (_, about) in ARMS.items())
    parts = "\n\n".join(_part(condition, results(blocks[condition.name])) for condition in known)
    others = "\n".join(f"  - {condition.title}: {circumstances[condition.name][0]}." for condition in known)
    speed = f"{SPEED['ttft_ms']:g} ms to the first token, {SPEED['itl_ms']:g} ms for each further one"
    prefill, cache = f"{SPEED['prefill_ms_per_1k']:g} ms", f"{CACHE['kv_blocks']} blocks of {CACHE['block_size']} tokens"
    added = next((each for _, each in (circumstances[condition.name] for condition in known) if each), {})
    delays = f"- **The routers themselves.** {_delays(added)}\n" if added else ""
    return f"""# Where the Thompson-sampling router helps

Made by `{command}` {machine}.

Six routers stand before the same {len(FIRST)} built-in engines:

{arms}

How it was measured:

- **Load.** A block has {SESSIONS} [synthetic sessions](../scenarios/sessions/README.md) of {CALLS[0]} to {CALLS[1]} calls, with pauses of
  {THINK_S:g} s on average. They begin within {ARRIVAL_S:g} s, at times that do not depend on answers (an open loop). Each call names its
  session. It also has the hints that the Thompson-sampling router reads: the number of calls, the length of answers and of pauses.
- **Engines.** They sleep for the time that an answer takes: {speed}, and
  {prefill} for each thousand prompt tokens that are not cached. An engine computes one prompt at a time, and answers
  {AT_ONCE} calls at a time. Its KV cache has {cache}, about 1.5 times what its share of the sessions needs.
- **Pairs of blocks.** In each round, each router gets the same sessions in a block of its own, with empty caches. Every second round has
  the reverse order. {rounds} rounds count, after a first one that does not. What a router has learnt stays until the last round.
- **Numbers.** The time of a session is that from its beginning to its last answer, with its pauses. Its p50 is the mean of the blocks'
  medians, with a 95 % bootstrap-t interval. A ratio below 1 means that `{OWN}` is faster than the arm of the row. Its interval is
  Student's t of {rounds} pairs of blocks, adjusted for {len(ARMS) - 1} comparisons (Holm). Sessions with a failed call have no time.
  Hits are the share of prompt tokens that were cached. The fourth engine's share is that of prompt tokens.
{delays}
{parts}

## What this page cannot show

- The engines are a model: hits save time, and prompts wait for each other. On a GPU, prompts and answers also slow down each other.
- A block is short. Routers learn from about a hundred calls in each, and sessions of a deployment last longer.
- Everything ran on one machine, which others used as well:
{others}
"""


def _delays(added: Mapping[str, float]) -> str:
    """Returns what each router adds to a call."""
    times = ", ".join(f"`{name}` {delay:.1f} ms" for name, delay in added.items())
    return (
        f"A call of one token takes longer through a router than at its engine. Medians of {SHORT_CALLS} calls of each, in turns:\n"
        f"  {times}. This is part of all times, and depends on\n  how busy the machine is."
    )


def _part(condition: Condition, arms: Mapping[str, ArmResult]) -> str:
    lines = [f"## {condition.title}", ""]
    if condition.is_changing:
        lines += [
            f"The fourth engine leaves {LEAVES_AT:g} s after the beginning of a block, and a fifth one with an empty cache joins after",
            f"{JOINS_AT:g} s: by `/workers` of the HTTP routers, and by the end of one worker of Dynamo and the registration of another.",
            "A worker of Dynamo that ends breaks off its calls, and Dynamo repeats none elsewhere, as in the shipped backends.",
            "",
        ]
    return "\n".join([*lines, *_table(condition, arms), "", *_findings(condition, arms)])


def _table(condition: Condition, arms: Mapping[str, ArmResult]) -> Iterator[str]:
    fourth = "slow engine's share" if condition.slow else "fourth engine's share"
    ratios = [f"{quantile} of `{OWN}` / this" for quantile in ("p50", "p90")]
    columns = ("arm", "session p50, s", ratios[0], "session p90, s", ratios[1], "hits", fourth, "failed calls")
    yield f"| {' | '.join(columns)} |"
    yield f"|---{'|---' * (len(columns) - 1)}|"
    for name, arm in arms.items():
        interval = f" ({arm.interval.low:.2f} to {arm.interval.high:.2f})" if arm.interval else ""
        cells = (f"`{name}`", f"{arm.p50:.2f}{interval}", _ratio(arm.ratio), f"{arm.p90:.2f}", _ratio(arm.ratio_p90))
        shares = (f"{100 * arm.hit_ratio:.0f} %", f"{100 * arm.at_fourth:.0f} %", f"{arm.failed} of {arm.calls}")
        yield f"| {' | '.join((*cells, *shares))} |"


def _ratio(decision: Decision | None) -> str:
    if decision is None:
        return ""
    if decision.estimate is None:
        return "too few sessions"
    return f"{decision.estimate:.2f} ({decision.low:.2f} to {decision.high:.2f})"


def _findings(condition: Condition, arms: Mapping[str, ArmResult]) -> Iterator[str]:
    """Yields the sentences that follow from the table."""
    others = [name for name in arms if name != OWN]
    yield from _comparison(condition, "median", {name: arms[name].ratio for name in others})
    yield from _comparison(condition, "p90", {name: arms[name].ratio_p90 for name in others})
    if condition.slow:
        yield (
            f"- The slow engine takes {SLOWER} times as long for everything. `{OWN}` sends "
            f"{100 * arms[OWN].at_fourth:.0f} % of the prompt tokens there."
        )
    for name, arm in arms.items():
        if arm.failed:
            yield f"- With `{name}`, {arm.failed} calls failed, in {100 * arm.failed_sessions:.0f} % of its sessions."


def _comparison(condition: Condition, quantile: str, decisions: Mapping[str, Decision | None]) -> Iterator[str]:
    verdicts = {name: decision.verdict if decision else "" for name, decision in decisions.items()}
    faster, slower = ([name for name in verdicts if verdicts[name] == verdict] for verdict in (PASS, FAIL))
    undecided = [name for name in verdicts if name not in faster + slower]
    yield f"- By the {quantile} of sessions, `{OWN}` is faster than {_names(faster)} and slower than {_names(slower)}."
    yield f"  Not decided: {_names(undecided)}."
    if condition.slow and (unbeaten := [name for name in AFFINITY if name in verdicts and name not in faster]):
        yield f"  So by the {quantile} it **is not shown to beat** {_names(unbeaten)}, although an engine is slow."


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
