"""The speed of a simulated worker, from measured calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.records import LLMCall
from pytest_agentbench.simulation.what_if import StepLine, WorkerSpeed, measured_timing, resistant_line, totals
from pytest_agentbench.tables import read_tables
from tests.made_runs import run_directory
from tests.tables.shop import call, rollout


def table(folder: Path, *calls: LLMCall) -> FrameTable:
    """Returns the calls of one rollout."""
    return read_tables([run_directory(folder / "run", rollout(end=1_000_000, calls=calls))]).calls


def planted(at: int, prompt: int, cached: int) -> LLMCall:
    """Returns a call of a worker that takes 20 ms, 1 ms for each 100 uncached tokens, and then 10 ms for each of five tokens."""
    first = at + 20 + (prompt - cached) // 100 + 10
    return replace(
        call(at, *(first + 10 * token for token in range(5)), end=first + 40),
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=5,
    )


def test_planted_speed_is_measured(tmp_path: Path) -> None:
    """Sequential calls give the worker's own speed. The decoding step of the first token does not count as prefill."""
    calls = table(tmp_path, *(planted(at * 1_000, prompt=1_000 + 300 * at, cached=500) for at in range(12)))
    timing = measured_timing(calls, workers=1)

    assert timing is not None
    assert [20, 0.01] == pytest.approx([timing.prefill.base_ms, timing.prefill.per_token_ms])
    assert [10, 0] == pytest.approx([timing.decode.base_ms, timing.decode.per_token_ms])


def test_calls_that_queue_do_not_slow_the_worker(tmp_path: Path) -> None:
    """Prefill is measured by calls with the fewest others waiting, because others measure the queue."""
    alone = [planted(at * 1_000, prompt=1_000, cached=500) for at in range(5)]
    crowd = [call(20_000, 21_000 + nth, 21_010 + nth, end=21_020 + nth) for nth in range(6)]
    timing = measured_timing(table(tmp_path, *alone, *crowd), workers=1)

    assert timing is not None
    assert 25 == pytest.approx(timing.prefill.at(np.array([500.0]))[0])


def test_tokens_in_work_are_shared_by_the_workers(tmp_path: Path) -> None:
    """With two workers, each has half of the load."""
    calls = [
        replace(call(at * 1_000, at * 1_000 + 50, at * 1_000 + 60 + at, end=at * 1_000 + 70 + at), prompt_tokens=1_000 * at)
        for at in range(1, 13)
    ]
    one, two = (measured_timing(table(tmp_path / str(workers), *calls), workers) for workers in (1, 2))

    assert one is not None
    assert two is not None
    assert 0 < one.decode.per_token_ms
    assert 2 * one.decode.per_token_ms == pytest.approx(two.decode.per_token_ms)


def test_calls_of_one_token_have_no_speed(tmp_path: Path) -> None:
    """Without a second token, the speed of decoding is unknown."""
    assert measured_timing(table(tmp_path, call(0, 50, end=60)), 1) is None


def test_lines() -> None:
    """One outlier changes nothing. A falling line becomes level, and one that would begin below zero goes through zero."""
    x = np.arange(9.0)
    outlier = np.where(x == 4, 1e6, 3 + 2 * x)

    assert StepLine(3, 2) == resistant_line(x, outlier)
    assert 0 == resistant_line(x, 10 - x).per_token_ms
    assert StepLine(7, 0) == resistant_line(np.zeros(3), np.full(3, 7.0))
    assert StepLine(0, 1.5) == resistant_line(np.array([4.0, 8.0, 12.0]), np.array([2.0, 12.0, 22.0]))


def test_active_spans() -> None:
    """A span counts from its beginning to its end."""
    begins, ends, weights = np.array([0.0, 2.0]), np.array([4.0, 6.0]), np.array([10.0, 1.0])

    assert [10, 11, 1, 0] == totals(begins, ends, weights, np.array([1.0, 3.0, 5.0, 7.0])).tolist()


def test_the_profile_has_the_format_of_the_simulator(tmp_path: Path) -> None:
    """The profile has five arrays of doubles with the names that Dynamo reads. Decoding depends on active tokens, not on context."""
    WorkerSpeed(StepLine(30, 0.001), StepLine(5, 0.0001)).write(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as profile:
        arrays = {name: profile[name].tolist() for name in profile.files}

    assert {"prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl"} == set(arrays)
    assert [30, 1_030] == arrays["prefill_ttft_ms"]
    assert [[5, 5], [105, 105]] == arrays["decode_itl"]
