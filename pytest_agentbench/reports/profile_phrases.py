"""The sentences of the report that `agentbench show --profile` prints, about where the time of a run went."""

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

NO_CALL = "no call with a known time"

NO_PROMPT = "no call with a known prompt"

NO_ROLLOUT = "no rollout"

TOTALS = "Concurrent calls count twice in totals; self is the time that no call below covers."

NOTHING_SHARED = "No two rollouts share a prompt prefix."


def untimed(missing: int, calls: int) -> str:
    """Returns how many calls have no known time. Empty if there are none."""
    return f"the time of {missing} of {calls} calls is unknown" if missing else ""


def branch(value: Branch) -> str:
    """Returns the name of a branch of the call tree, indented by its depth."""
    return f"{'  ' * (len(value.path) - 1)}{value.name}"


def most_time(branches: Sequence[Branch]) -> str:
    """`LLM m 6.38 s; LLM m > decoding 4.62 s`: the branches with the longest totals. Empty if there are none."""
    return "; ".join(f"{' > '.join(each.path[1:])} {number(each.total_s, 2)} s" for each in branches)


def usual_concurrency(value: Concurrency) -> str:
    """Returns the usual and the highest number of calls in flight."""
    return f"For 90 % of the time with any call in flight, at most {value.usual} were; the peak was {value.peak}."


def spikes(value: Concurrency) -> str:
    """Returns how often, and for which share of the time, more calls than usual were in flight."""
    if not value.spikes:
        return f"There were never more than {value.usual}, so there is no spike."
    longest = f"; the longest {len(value.spikes)}" if value.count > len(value.spikes) else ""
    return f"More than {value.usual}: {count(value.count, 'spike')}, {percent(value.share)} of that time{longest}:"


def calls_in_spikes(value: Concurrency) -> str:
    """Compares the latencies of calls sent in spikes with the others. Empty if there is no spike."""
    if not value.spikes:
        return ""
    return f"calls sent in spikes: {_latencies(value.inside)}; outside: {_latencies(value.outside)} (medians)"


def _latencies(value: Latencies) -> str:
    return f"{value.calls} calls, TTFT {number(value.ttft_ms)} ms, E2E {number(value.e2e_ms)} ms"


def in_flight(least: int, most: int) -> str:
    """`3 to 4`: a range of calls in flight, or `3` if both ends are equal."""
    return str(least) if least == most else f"{least} to {most}"


def unknown_prompts(amount: int) -> str:
    """Returns how many calls are left out because their prompt is unknown. Empty if there are none."""
    return f"{amount} calls are left out, because the transcripts do not contain their prompts" if amount else ""


def perfect_cache(value: PromptReuse) -> str:
    """Returns how many of the prompt tokens a perfect prefix cache would already contain when they are sent."""
    share = value.reusable_tokens / value.prompt_tokens if value.prompt_tokens else None
    whole = f"{number(value.prompt_tokens, 0)} prompt tokens of {value.calls} calls"
    return f"A perfect prefix cache would contain {number(value.reusable_tokens, 0)} ({percent(share)}) of {whole}:"


def reuse_between(value: PromptReuse) -> str:
    """Returns how many of the prompt tokens that a perfect prefix cache would contain come from the same rollout or from another."""
    between = value.reusable_tokens - value.within_tokens
    return f"{number(value.within_tokens, 0)} sent before by the same rollout, {number(between, 0)} by another one."


def server_hits(value: PromptReuse) -> str:
    """Returns how many prompt tokens the server reports as cached, or that it reports none."""
    if value.cached_tokens is None:
        return "The server does not report cached tokens."
    share = value.cached_tokens / value.cached_of if value.cached_of else None
    return f"The server reports {number(value.cached_tokens, 0)} ({percent(share)}) of {number(value.cached_of, 0)} as cached."


def prefix_end(prefix: Prefix) -> Text:
    """Returns the last characters of a prompt prefix that rollouts share.

    Says so if they share only what precedes the transcript in a prompt, such as the descriptions of tools.
    """
    return Code(prefix.ends) if prefix.ends else "(before the transcript)"


def estimates(value: PromptReuse) -> str:
    """Returns how the numbers of tokens were estimated."""
    counts = "fitted to the server's counts" if value.counted else f"{CHARACTERS} characters per token, because no server counted"
    return f"Estimates, from transcripts in blocks of {BLOCK} characters, {counts}; tools and template count as one prefix of all calls."
