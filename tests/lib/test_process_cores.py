"""The cores that a process may use."""

from __future__ import annotations

import os

import pytest

from pytest_agentbench.lib.process import usable_cores


def test_usable_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system whose Python has no `sched_getaffinity`, such as macOS, has as many usable cores as it has cores."""
    assert len(os.sched_getaffinity(0)) == usable_cores()
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)

    assert 7 == usable_cores()
