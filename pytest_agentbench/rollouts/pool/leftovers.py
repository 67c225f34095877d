"""Ends a process that runs rollouts when its parent has died, with the processes that agents and scorers left running."""

from __future__ import annotations

import os
import time

from pytest_agentbench.lib.process import SESSION, end_marked


def end_leftovers() -> None:
    """Ends the processes that agents and scorers left running. The mark in their environment identifies them."""
    if mark := os.environ.get(SESSION):
        end_marked(SESSION, mark)


def exit_after_stdin(stdin: int, parent: int, grace: float) -> None:
    """Waits until the descriptor `stdin` closes, and exits `grace` seconds later.

    The event loop handles the end of stdin, too, but not while an agent blocks it, and it does not exit before the agents' threads do.
    `parent` is the id of the process that started this one. If it lives, it ends the leftovers itself, and counts them.
    """
    while os.read(stdin, 4096):
        pass
    time.sleep(grace)
    if os.getppid() != parent:
        end_leftovers()
    os._exit(0)
