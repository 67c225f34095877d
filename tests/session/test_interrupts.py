"""A signal can arrive between any two instructions, and pytest must be able to report it."""

from __future__ import annotations

import pytest

from pytest_agentbench.session.interrupts import leave_out_steps_without_a_line

NO_LINES = bytes([0b1_1111_000 | 7])  # an entry of a line table: eight code units that belong to no line (CPython's Objects/locations.md)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_instruction_without_a_line() -> None:
    """Pytest cannot show a traceback entry without a line. After its removal it shows the others."""
    units = len(interrupted.__code__.co_code) // 2
    interrupted.__code__ = interrupted.__code__.replace(co_linetable=NO_LINES * (units // 8 + 1))
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    with pytest.raises(TypeError, match="NoneType"):  # If pytest can show it one day, the workaround can go.
        caught.getrepr()

    leave_out_steps_without_a_line(caught)

    assert "interrupted()" in str(caught.getrepr())
