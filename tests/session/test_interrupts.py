"""A signal may come between any two instructions, which pytest has to be able to report."""

from __future__ import annotations

import pytest

from pytest_agentbench.session.interrupts import leave_out_steps_without_a_line

NO_LINES = bytes([0b1_1111_000 | 7])  # an entry of a line table: eight code units that belong to no line (CPython's Objects/locations.md)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_instruction_without_a_line() -> None:
    """Pytest cannot show such a step of a traceback; without it the other ones are shown."""
    units = len(interrupted.__code__.co_code) // 2
    interrupted.__code__ = interrupted.__code__.replace(co_linetable=NO_LINES * (units // 8 + 1))
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    with pytest.raises(TypeError, match="NoneType"):  # once pytest can, nothing has to be left out any more
        caught.getrepr()

    leave_out_steps_without_a_line(caught)

    assert "interrupted()" in str(caught.getrepr())
