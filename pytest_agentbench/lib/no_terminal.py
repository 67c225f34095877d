"""Refuses debuggers and reads of stdin in a process without a terminal, where code of a suite would wait for input without an end."""

from __future__ import annotations

import io
import os
import pdb  # noqa: T100 - it is switched off here
import sys
from typing import NoReturn

from pytest_agentbench.errors import NoTerminal
from pytest_agentbench.lib.error_texts import user_place

STDIN = 0  # file descriptor

IN_A_ROLLOUT = "--agentbench-inline (which --pdb implies) runs agents, tools and scorers in pytest's own process"
AT_IMPORT = "move it into a function, because importing the code must only define things"


def refuse_input(advice: str) -> int:
    """Makes `breakpoint()`, `pdb.set_trace()` and all reads of stdin raise NoTerminal in this process.

    A debugger that PYTHONBREAKPOINT names still starts, because it may have a terminal or a port of its own. Programs that the process
    starts read an empty stdin.

    Args:
        advice: What the user can do instead. It ends the message of the error.

    Returns:
        A descriptor of what was stdin.
    """
    before = os.dup(STDIN)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), STDIN)
    sys.stdin = _NoInput(advice)

    def refuse_breakpoint(*arguments: object, **options: object) -> object:
        if os.environ.get("PYTHONBREAKPOINT", "") not in ("", "pdb.set_trace"):
            return sys.__breakpointhook__(*arguments, **options)  # noqa: T100
        _refuse("breakpoint()", advice)

    def refuse_set_trace(*arguments: object, **options: object) -> NoReturn:
        del arguments, options
        _refuse("pdb.set_trace()", advice)

    sys.breakpointhook = refuse_breakpoint
    pdb.set_trace = refuse_set_trace
    return before


def _refuse(what: str, advice: str) -> NoReturn:
    raise NoTerminal(f"{what} needs a terminal, and this process has none; {advice}{user_place(sys._getframe())}")


class _NoInput(io.TextIOBase):
    """Replaces `sys.stdin`. Other debuggers, such as `pdb.Pdb().set_trace()`, read it as `input()` does."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def read(self, size: int | None = -1, /) -> str:
        del size
        return self.readline()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # the base class has another name for it
        del size
        _refuse("input() or another read of stdin", self._advice)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDIN

    @property
    def buffer(self) -> NoReturn:
        _refuse("a read of stdin", self._advice)
