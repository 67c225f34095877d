"""Cleanup for sessions whose own backend is not a stack: ends what is left of stacks whose stack daemon was killed."""

from __future__ import annotations

from collections.abc import Callable

from pytest_agentbench.backends.stack.registry import clean_up_orphans
from pytest_agentbench.errors import AgentbenchError


def end_orphans(say: Callable[[str], None]) -> None:
    """Ends the services of this user's stacks whose stack daemon is dead, and passes a sentence about them to `say`.

    If the folder of stacks cannot be used, nothing happens, because this session may not need a stack.
    """
    try:
        ended = clean_up_orphans()
    except (AgentbenchError, OSError):
        return
    if ended:
        say(ended)
