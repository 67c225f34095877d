"""The words of where the time of a run went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_agentbench.profile.prefixes import BLOCK, CHARACTERS
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.phrases import count, number, percent

if TYPE_CHECKING:
    from pytest_agentbench.profile.prefixes import Prefix, PromptReuse
    from pytest_agentbench.profile.slow_phases import Concurrency, Latencies
    from pytest_agentbench.profile.tree import Branch

NO_CALL = "no call whose time is known"

NO_PROMPT = "no call whose prompt is known"

NO_ROLLOUT = "no rollout"

TOTALS = "Calls at the same time count twice in totals; self is what no call below covers."

NOTHING_SHARED = "No two rollouts begin alike."


def untimed(missing: int, calls: int) -> str:
    """Calls that are in no time. The text is empty if there are none."""
    return f"of {missing} of {calls} calls it is unknown when they were" if missing else ""


def branch(value: Branch) -> str:
    """A name of the call tree, further to the right than what called it."""
    return f"{'  ' * (len(value.path) - 1)}{value.name}"


def most_time(branches: Sequence[Branch]) -> str:
    """`LLM m 6.38 s; LLM m > decoding 4.62 s`: the branches that took most. The text is empty if there are none."""
    return "; ".join(f"{' > '.join(each.path[1:])} {number(each.total_s, 2)} s" for each in branches)


def usual_concurrency(value: Concurrency) -> str:
    """How many calls were in flight usually, and at most."""
    return f"For 90 % of the time in which any call was in flight, {value.usual} or fewer were; at the peak {value.peak}."


def spikes(value: Concurrency) -> str:
    """How often more calls than usual were in flight, and for how much of the time."""
    if not value.spikes:
        return f"There were never more than {value.usual}, so there is no spike."
    longest = f"; the longest {len(value.spikes)}" if value.count > len(value.spikes) else ""
    return f"More than {value.usual}: {count(value.count, 'spike')}, {percent(value.share)} of that time{longest}:"


def calls_in_spikes(value: Concurrency) -> str:
    """How fast the calls were that were sent in spikes, and the others. The text is empty if there is no spike."""
    if not value.spikes:
        return ""
    return f"calls sent in spikes: {_latencies(value.inside)}; outside: {_latencies(value.outside)} (medians)"


def _latencies(value: Latencies) -> str:
    return f"{value.calls} calls, TTFT {number(value.ttft_ms)} ms, E2E {number(value.e2e_ms)} ms"


def in_flight(least: int, most: int) -> str:
    """`3 to 4`."""
    return str(least) if least == most else f"{least} to {most}"


def unknown_prompts(amount: int) -> str:
    """Calls of which no prompt is known. The text is empty if there are none."""
    return f"of {amount} calls the transcripts do not tell the prompts; they are not in here" if amount else ""


def perfect_cache(value: PromptReuse) -> str:
    """What a perfect prefix cache would have had of the prompt tokens."""
    share = value.reusable_tokens / value.prompt_tokens if value.prompt_tokens else None
    whole = f"{number(value.prompt_tokens, 0)} prompt tokens of {value.calls} calls"
    return f"A perfect prefix cache would have {number(value.reusable_tokens, 0)} ({percent(share)}) of {whole}:"


def reuse_between(value: PromptReuse) -> str:
    """Which of these tokens the same rollout had asked before, and which another one."""
    between = value.reusable_tokens - value.within_tokens
    return f"{number(value.within_tokens, 0)} that the same rollout had asked before, {number(between, 0)} that another one had."


def server_hits(value: PromptReuse) -> str:
    """What the server says that it had in its cache."""
    if value.cached_tokens is None:
        return "The server does not say what it had in its cache."
    share = value.cached_tokens / value.cached_of if value.cached_of else None
    return f"The server had {number(value.cached_tokens, 0)} ({percent(share)}) of {number(value.cached_of, 0)} in its cache, as it says."


def prefix_end(prefix: Prefix) -> Text:
    """The last characters of a beginning that rollouts share."""
    return Code(prefix.ends) if prefix.ends else "(before the transcript)"


def estimates(value: PromptReuse) -> str:
    """What the numbers of tokens are from."""
    counts = "fitted to the server's counts" if value.counted else f"{CHARACTERS} characters a token, for no server counted"
    return f"Estimates, from transcripts in blocks of {BLOCK} characters, {counts}; tools and template count as one beginning of all calls."
