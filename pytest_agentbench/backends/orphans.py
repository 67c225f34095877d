"""Stacks whose session and stack daemon were both killed, which the next session ends."""

from __future__ import annotations

from collections.abc import Callable

from pytest_agentbench.backends.stack.registry import clean_up_orphans
from pytest_agentbench.errors import AgentbenchError


def end_orphans(say: Callable[[str], None]) -> None:
    """Ends the stacks of this user that have no stack daemon, and says what was ended in one sentence.

    Ignores a folder of stacks that cannot be used, because this session may need no stack.
    """
    try:
        ended = clean_up_orphans()
    except (AgentbenchError, OSError):
        return
    if ended:
        say(ended)
