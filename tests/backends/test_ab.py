"""Several backends under one roof."""

from __future__ import annotations

from functools import partial

from pytest_agentbench.backends.ab import Arms
from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec


def test_a_note_of_all_arms() -> None:
    """Arms that have one and the same note print it once; each other note stands beside it."""
    notes = ["warm", "warm", "", "cold"]
    specs = [EmbeddedSpec(name=f"b{number}", kind="embedded", note=note) for number, note in enumerate(notes)]

    arms = Arms({spec.name: partial(Embedded, spec) for spec in specs})

    assert "warm; cold" == arms.note
