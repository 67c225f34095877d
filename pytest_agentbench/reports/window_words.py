"""The rates of a window of a run, in words: the steady one, and one that the user chose."""

from __future__ import annotations

from pytest_agentbench.metrics.chosen_window import WindowSummary
from pytest_agentbench.metrics.performance import PerformanceSummary, SteadyCalls, SteadyRollouts
from pytest_agentbench.reports.words import number, percent


def steady_text(performance: PerformanceSummary) -> str:
    """Rates of the time in which the concurrency asked for was there."""
    steady = performance.steady
    windows = (("rollouts", steady.rollouts), ("calls", steady.calls))
    return "; ".join(_window_text(window, f"90 % of {steady.asked} {name} in flight") for name, window in windows)


def chosen_text(window: WindowSummary) -> str:
    """Rates of the window that the user chose, or that there is nothing in it."""
    window_text = f"{window.start_s:g} s" + (" on" if window.end_s is None else f" to {window.end_s:g} s")
    if not window.seconds:
        return f"nothing was measured from {window_text} after the first call: the run was over {window.run_s:.1f} s after it"
    if not window.calls:
        return f"no LLM call was sent from {window_text} after the first one, in {seconds_text(window.seconds)}"
    failed = f" ({window.failed_calls} failed)" if window.failed_calls else ""
    measured = window.metrics
    rates = f"{number(measured['output_tokens_per_s'])} output tok/s, {number(measured['rollouts_per_hour'], 0)} rollouts/h"
    calls = f"{number(measured['calls_per_minute'])} LLM calls/min, {window.calls} LLM calls{failed}"
    return f"{rates}, {calls} in the {seconds_text(window.seconds)} from {window_text} after the first call"


def seconds_text(seconds: float) -> str:
    """Seconds, of which less than a tenth are milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def _window_text(window: SteadyCalls | None, what: str) -> str:
    if window is None:
        return f"never {what}"
    rollouts = f", {number(window.rollouts_per_hour, 0)} rollouts/h" if isinstance(window, SteadyRollouts) else ""
    rates = f"{number(window.output_tokens_per_s)} output tok/s{rollouts}"
    return f"{rates} in the {seconds_text(window.seconds)} ({percent(window.share)}) with {what}"
