"""The report of a profile: slowest calls, call tree, spikes of concurrency, and shared prompt prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.profile import Profile
from pytest_agentbench.profile.prefixes import PromptReuse
from pytest_agentbench.profile.slow_phases import Concurrency, Latencies
from pytest_agentbench.profile.tree import Branch, top
from pytest_agentbench.reports import profile_phrases
from pytest_agentbench.reports.document import AnyBlock, Document, Fact, Note, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.phrases import percent
from pytest_agentbench.reports.sections.serving import CALL_COLUMNS, call_cells

WIDTH = 120  # columns of a terminal

OF_CALLS = (("calls sent", 0), ("TTFT ms", 1), ("E2E ms", 1))


def document(profile: Profile) -> Document:
    """Returns the report that `agentbench show --profile` prints."""
    parts = (
        of("Slowest LLM calls", _slowest(profile)),
        of("Call tree", _tree(profile.tree)),
        of("Concurrency spikes", _concurrency(profile.concurrency)),
        of("Common prompt prefixes", _prompts(profile.prompts)),
    )
    return Document.of("Profile", parts)


def _slowest(profile: Profile) -> Iterator[AnyBlock]:
    yield Note(say(profile_phrases.untimed, profile.calls - profile.timed, profile.calls))
    rows = tuple((*call_cells(each.call), each.in_flight or None, each.why) for each in profile.slowest)
    yield Table((*CALL_COLUMNS, *heads(("in flight", 0), "why")), rows, repeated=2)
    if not rows:
        yield Note(profile_phrases.NO_CALL)


def _tree(tree: Sequence[Branch]) -> Iterator[AnyBlock]:
    rows = tuple((say(profile_phrases.branch, each), each.count, each.total_s, each.self_s, say(percent, each.share)) for each in tree)
    yield Table(heads("", ("count", 0), ("total s", 3), ("self s", 3), ("share", 1)), rows)
    yield Fact("most time", say(profile_phrases.most_time, top(tree)))
    yield Note(profile_phrases.TOTALS if tree else profile_phrases.NO_ROLLOUT)


def _concurrency(concurrency: Concurrency | None) -> Iterator[AnyBlock]:
    if concurrency is None:
        yield Note(profile_phrases.NO_CALL)
        return
    yield Note(say(profile_phrases.usual_concurrency, concurrency))
    yield Note(say(profile_phrases.spikes, concurrency))
    spikes = tuple((each.start_s, each.duration_s * 1e3, each.peak, *_of_calls(each.sent)) for each in concurrency.spikes)
    yield Table(heads(("at s", 3), ("for ms", 1), ("in flight", 0), *OF_CALLS), spikes)
    yield Note(say(profile_phrases.calls_in_spikes, concurrency))
    flight = profile_phrases.in_flight
    rows = tuple((say(flight, each.least, each.most), say(percent, each.share), *_of_calls(each.sent)) for each in concurrency.levels)
    yield Table(heads(("in flight", 0), ("of the time", 1), *OF_CALLS), rows)


def _of_calls(latencies: Latencies) -> tuple[TableCell, ...]:
    return latencies.calls, latencies.ttft_ms, latencies.e2e_ms


def _prompts(reuse: PromptReuse) -> Iterator[AnyBlock]:
    yield Note(say(profile_phrases.unknown_prompts, reuse.unknown))
    if not reuse.calls:
        yield Note(profile_phrases.NO_PROMPT)
        return
    for phrase in (profile_phrases.perfect_cache, profile_phrases.reuse_between, profile_phrases.server_hits):
        yield Note(say(phrase, reuse))
    rows = tuple(
        (each.tokens, each.rollouts, each.calls, each.group, each.model, say(profile_phrases.prefix_end, each)) for each in reuse.prefixes
    )
    yield Table(heads(("tokens", 0), ("rollouts", 0), ("calls", 0), "suite", "model", "ends with"), rows)
    yield Note("" if rows else profile_phrases.NOTHING_SHARED)
    yield Note(say(profile_phrases.estimates, reuse))
