"""The section of server metrics."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import Document, Finding, Level
from tests.findings import facts, report, said
from tests.made_runs import run_of
from tests.reports.test_serving_phrases import GPU, SERVING


def full(**changes: object) -> Document:
    return report(run_of(serving=replace(SERVING, **changes)), Level.FULL)  # type: ignore[arg-type]  # its fields, of several types


def test_facts_about_servers() -> None:
    """Cache and load are always shown. Each GPU has a fact with its name."""
    found = full(gpus={"0": GPU})

    assert ([(replace(SERVING, gpus={"0": GPU}),)],) * 2 == (
        said(found, serving_phrases.server_cache),
        said(found, serving_phrases.server_load),
    )
    assert [(GPU, SERVING.every_s)] == [fact.content.values for fact in facts(found, "GPU 0") if isinstance(fact.content, Finding)]
    assert 2 == len(facts(found, "server"))
    assert [] == facts(report(run_of()), "server")


def test_disturbances() -> None:
    """Decreases of counters and long sampling gaps are shown if there were any."""
    late, restarted = full(longest_gap_s=3.9), full(resets=2)

    assert (1, 0) == (len(said(late, serving_phrases.sampling_gap)), len(said(late, serving_phrases.counter_resets)))
    assert (0, 1) == (len(said(restarted, serving_phrases.sampling_gap)), len(said(restarted, serving_phrases.counter_resets)))
    assert [] == said(full(longest_gap_s=2.5), serving_phrases.sampling_gap)


def test_disagreements() -> None:
    """Disagreements and sampling problems have their own labels and the tone open."""
    found = full(disagreements=("a",), notes=("b",))

    assert [("differs", "a", "open"), ("sampling", "b", "open")] == [
        (label, fact.content, fact.tone) for label in ("differs", "sampling") for fact in facts(found, label)
    ]


def test_samples() -> None:
    """Files have the number of samples."""
    assert [(SERVING,)] == said(report(run_of(serving=SERVING), Level.VERBOSE), serving_phrases.samples)
    assert [] == said(full(), serving_phrases.samples)
