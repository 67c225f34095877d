"""How the rates of a window are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.chosen_window import WindowSummary
from pytest_agentbench.metrics.performance import SteadyCalls, SteadyRates, SteadyRollouts
from pytest_agentbench.reports.window_words import chosen_text, steady_text
from tests.made_runs import run_of

NOTHING = run_of().performance


def test_steady() -> None:
    """Rates with how long they held, or that it never was so."""
    window = (3.56, 0.684, 1074.5)
    steady = SteadyRates(8, 0, SteadyRollouts(*window, rollouts_per_hour=2100.0), None)

    assert (
        "1,074.5 output tok/s, 2,100 rollouts/h in the 3.6 s (68.4 %) with 90 % of 8 rollouts in flight; never 90 % of 8 calls in flight"
        == steady_text(replace(NOTHING, steady=steady))
    )
    assert "1,074.5 output tok/s in the 3.6 s (68.4 %) with 90 % of 8 calls in flight" in steady_text(
        replace(NOTHING, steady=replace(steady, calls=SteadyCalls(*window)))
    )


@pytest.mark.parametrize(
    ("seconds", "calls", "words"),
    [
        (0.0, 0, "nothing was measured from 5 s to 6 s after the first call: the run was over 4.0 s after it"),
        (0.9, 0, "no LLM call was sent from 5 s to 6 s after the first one, in 0.9 s"),
        (0.02, 2, "- output tok/s, - rollouts/h, - LLM calls/min, 2 LLM calls in the 20.0 ms from 5 s to 6 s after the first call"),
    ],
)
def test_a_window_with_little_in_it(seconds: float, calls: int, words: str) -> None:
    """That nothing was sent in it is said in words, and a short one is not of 0.0 s."""
    unknown = dict.fromkeys(registry.rates())
    assert words == chosen_text(WindowSummary(5.0, 6.0, seconds, 4.0, calls, 0, unknown, {}))
