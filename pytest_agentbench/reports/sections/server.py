"""The section of server metrics: what the services of the stack reported while calls were in progress."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.backends.telemetry.engine_stats import ServingSummary
from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import AnyBlock, Fact, Level, Note, Section, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView

LATE = 2.5  # A gap between samples is shown if it is this many times longer than the sampling interval.


def section(view: RunView) -> Section | None:
    """Returns the servers' own metrics (prefix cache, KV cache, requests, GPUs), and where they differ from our own counts."""
    serving = view.run.serving
    return of("Server metrics", _facts(serving) if serving else [])


def _facts(serving: ServingSummary) -> Iterator[AnyBlock]:
    yield Fact("server", say(serving_phrases.server_cache, serving))
    yield Fact("server", say(serving_phrases.server_load, serving))
    if serving.longest_gap_s > LATE * serving.every_s:
        yield Fact("server", say(serving_phrases.sampling_gap, serving))
    yield Fact("server", say(serving_phrases.counter_resets, serving))
    yield from (Fact(f"GPU {name}", say(serving_phrases.gpu, use, serving.every_s)) for name, use in serving.gpus.items())
    yield from (Fact("differs", each, "open") for each in serving.disagreements)
    yield from (Fact("sampling", each, "open") for each in serving.notes)
    yield Note(say(serving_phrases.samples, serving), level=Level.VERBOSE)
