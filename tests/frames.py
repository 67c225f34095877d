"""Frames of rollouts, for tests."""

from __future__ import annotations

from pytest_agentbench.metrics.frame import Frame, Slice
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import Rollout


def frame_of(*rollouts: Rollout) -> Frame:
    """Returns a frame of some rollouts."""
    reader = FrameReader()
    for rollout in rollouts:
        reader.add(rollout)
    return reader.frame()


def scenarios_of(*rollouts: Rollout, terms: Terms | None = None) -> Slice:
    """Returns the slice of all scenarios among some rollouts."""
    return frame_of(*rollouts).scenarios(terms)
