"""The features of a call at a worker, and what follows from them. The vectors were computed with the original router."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.router.constants import PRESETS
from pytest_agentbench.router.features import (
    CallAtWorker,
    CallHints,
    WorkerLoad,
    call_at_worker,
    features,
    iat_level,
    load_factor,
    osl_level,
    prefill_cost,
    prefill_level,
    probabilities,
    session_bonus,
    session_work,
    temperature,
    with_load,
)

NAT = PRESETS["nat"]
HINTS = CallHints("p", 4, "MEDIUM", "MEDIUM", 2048)
BUSY = CallAtWorker(HINTS, 0.5, 2, 0.75, session_work(4, 2.0, 0.5, 1.0), True)
FREE = CallAtWorker(HINTS, 0.1, 0, 0, 0, False)


def test_vectors_of_two_workers() -> None:
    """Features, load factors, bonus and penalty of the two workers are those of the original."""
    assert [1, 0.222222, 0.75, 1, 0.761594, 0.666667, 0.462117, 0.666667, 0.761594] == pytest.approx(features(NAT, BUSY), abs=1e-6)
    assert [1, 0.909091, 0, 0, 0, 0.666667, 0.964028, 0.666667, 0.761594] == pytest.approx(features(NAT, FREE), abs=1e-6)
    assert (0.5, 2.0, 10.0) == (prefill_cost(NAT, BUSY), prefill_cost(NAT, FREE), BUSY.work)
    assert pytest.approx(0.095238, abs=1e-6) == load_factor(NAT, BUSY)
    assert pytest.approx(0.793651, abs=1e-6) == load_factor(NAT, FREE)
    assert pytest.approx(0.7175) == session_bonus(NAT, BUSY)
    assert pytest.approx(-0.29) == session_bonus(NAT, FREE)
    assert ("MEDIUM", "HIGH") == (prefill_level(prefill_cost(NAT, BUSY)), prefill_level(prefill_cost(NAT, FREE)))


def test_vectors_of_the_choice() -> None:
    """The temperature has limits, and the probabilities of two scores are those of the original."""
    assert [0.731059, 0.268941] == pytest.approx(probabilities([0.3, 0.1], 0.2), abs=1e-6)
    assert pytest.approx(0.2) == temperature(NAT, HINTS)
    cold = temperature(NAT, CallHints("p", 99))
    assert pytest.approx(0.15) == cold
    assert [0.791391, 0.208609] == pytest.approx(probabilities([0.3, 0.1], cold), abs=1e-6)


def test_levels() -> None:
    """Numbers become the levels of the original."""
    assert ["LOW", "MEDIUM", "MEDIUM", "HIGH"] == [osl_level(tokens) for tokens in (255, 256, 1023, 1024)]
    assert ["LOW", "MEDIUM", "MEDIUM", "HIGH"] == [iat_level(each) for each in (99, 100, 499, 500)]
    assert ["LOW", "MEDIUM", "HIGH"] == [prefill_level(cost) for cost in (0.24, 0.25, 0.75)]


def test_load_and_negative_scores() -> None:
    """In the preset `nat`, load brings a negative score nearer to zero. In `sticky`, more load is never better."""
    assert with_load(NAT, -1.0, 0.1) > with_load(NAT, -1.0, 0.9)
    assert with_load(PRESETS["sticky"], -1.0, 0.1) < with_load(PRESETS["sticky"], -1.0, 0.9) < 0
    assert with_load(PRESETS["sticky"], 1.0, 0.1) == with_load(NAT, 1.0, 0.1)


@given(st.floats(-1e6, 1e6), st.floats(0, 1), st.floats(0, 1))
def test_more_load_is_never_better(score: float, one: float, other: float) -> None:
    """In the preset `sticky`, a smaller load factor never gives a higher score."""
    low, high = sorted((one, other))

    assert with_load(PRESETS["sticky"], score, low) <= with_load(PRESETS["sticky"], score, high)


def test_missing_metrics() -> None:
    """A worker without metrics looks idle in the preset `nat`. In `sticky`, its unanswered calls are its load."""
    missing = WorkerLoad()

    assert (0.0, 5.0) == call_at_worker(NAT, HINTS, missing, 5, 0.0, previous=None)[1:3]
    assert (0.25, 5.0) == call_at_worker(PRESETS["sticky"], HINTS, missing, 5, 0.0, previous=None)[1:3]
    assert (0.5, 7.0) == call_at_worker(PRESETS["sticky"], HINTS, WorkerLoad(0.5, 7), 5, 0.0, previous=None)[1:3]


@given(st.one_of(st.none(), st.floats()), st.one_of(st.none(), st.floats()), st.floats(), st.integers(0, 10_000))
def test_features_are_finite(gpu: float | None, queue: float | None, overlap: float, own_calls: int) -> None:
    """Any number that a worker reports gives finite features, and a load factor above 0 and at most 1."""
    for constants in PRESETS.values():
        call = call_at_worker(constants, HINTS, WorkerLoad(gpu, queue, overlap), own_calls, 1e9, previous=True)

        assert np.isfinite(features(constants, call)).all()
        assert 0 < load_factor(constants, call) <= 1
        assert math.isfinite(session_bonus(constants, call))


def test_the_last_call_of_a_session() -> None:
    """In the preset `nat`, the last call of a session has neither bonus nor penalty. In `sticky` it has. A new session has none."""
    here, there, unknown = (BUSY._replace(hints=CallHints("p", 0), previous=previous) for previous in (True, False, None))

    assert [0, 0, 0] == [session_bonus(NAT, call) for call in (here, there, unknown)]
    assert session_bonus(PRESETS["sticky"], there) < 0 == session_bonus(PRESETS["sticky"], unknown) < session_bonus(PRESETS["sticky"], here)
    assert load_factor(NAT, here) < 0.1
    assert 0.7 == load_factor(PRESETS["sticky"], here)
