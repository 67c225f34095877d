"""What a pool says while its event loop stands still, and over what it ends itself: a pipe to the controller."""

from __future__ import annotations

import os
from typing import NoReturn

from pytest_agentbench.lib import json_text, messages
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.pool_config import BlockedBy, FromPipe
from pytest_agentbench.rollouts.protocol import ShowUser

BLOCKED = 3  # exit status of a pool that ended itself because somebody held it up


class ControllerPipe:
    """For any thread. A line of JSON each; the controller reads them all, also those of a pool that is dead."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # who reads it waits for its end
        self._pipe = pipe

    def say(self, sentence: str) -> None:
        self._write(ShowUser(sentence))

    def leave(self, rollout: Rollout | None) -> NoReturn:
        try:
            if rollout is not None:
                self._write(BlockedBy(rollout))
        finally:  # The pool is held up, whether the controller can be told why or not.
            os._exit(BLOCKED)

    def _write(self, message: FromPipe) -> None:
        rest = json_text.dumps_any(messages.header(message)) + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
