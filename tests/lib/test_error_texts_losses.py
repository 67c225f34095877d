"""Failed steps at the end of a session."""

from __future__ import annotations

import pytest

from pytest_agentbench.lib.error_texts import Losses


def test_steps_fail_alone() -> None:
    """A failed step is reported once, with its cause, redacted. Interrupts of a session are not caught."""
    losses = Losses(lambda text: text.replace("hunter2", "[redacted]"))

    for _ in range(2):
        with losses.step("report.md is not written"):
            raise OSError(28, "No space left on device", "report.md")
    assert 3 == losses.value("the gate has not judged", lambda: int("hunter2"), 3)
    assert 7 == losses.value("nothing", lambda: 7, 3)
    with pytest.raises(KeyboardInterrupt), losses.step("the end"):
        raise KeyboardInterrupt

    disk, number = losses.sentences
    assert "report.md is not written: [Errno 28] No space left on device: 'report.md'" == disk
    assert number.startswith(
        "the gate has not judged: ValueError(\"invalid literal for int() with base 10: '[redacted]'\") (test_error_texts_losses.py:"
    )
