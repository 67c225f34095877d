"""Cleanup of stacks whose session and stack daemon were both killed. The next session does it."""

from __future__ import annotations

from collections.abc import Callable

from pytest_agentbench.backends.stack.registry import clean_up_orphans
from pytest_agentbench.errors import AgentbenchError


def end_orphans(say: Callable[[str], None]) -> None:
    """Cleans up the stacks of this user that have no stack daemon, and passes a sentence about them to `say`.

    Errors of the folder of stacks are ignored, because this session may not need a stack.
    """
    try:
        ended = clean_up_orphans()
    except (AgentbenchError, OSError):
        return
    if ended:
        say(ended)
