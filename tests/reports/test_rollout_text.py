"""One rollout as text: the end of its log, and the tools that the model saw and asked for."""

from __future__ import annotations

from pytest_agentbench.reports.rollout_text import LOG, log_end


def test_the_end_of_a_log() -> None:
    """A log is cut at the beginning of a traceback, if that is longer than what is shown, and the text says how much was left out."""
    before = [f"INFO shop: line {number}" for number in range(30)]
    frames = [f"  File {number}" for number in range(LOG + 5)]
    traceback = ["Traceback (most recent call last):", *frames, "KeyError: 'x'"]

    assert [] == log_end("  \n")
    assert before[:3] == log_end("\n".join(before[:3]))
    assert [f"... {30 - LOG} lines before these are in the record", *before[-LOG:]] == log_end("\n".join(before))
    assert ["... 30 lines before these are in the record", *traceback] == log_end("\n".join([*before, *traceback]))
    assert traceback == log_end("\n".join(traceback))
