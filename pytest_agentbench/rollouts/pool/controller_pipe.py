"""What a pool says while its event loop stands still, and over what it ends itself: a pipe to the controller."""

from __future__ import annotations

import os
from typing import NoReturn

import orjson

from pytest_agentbench.lib import messages
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.inherited import RolloutEnd
from pytest_agentbench.rollouts.pool_config import BlockedBy, BlockedByScorer, FromPipe
from pytest_agentbench.rollouts.protocol import ShowUser

BLOCKED = 3  # exit status of a pool that ended itself because somebody held it up


class ControllerPipe:
    """For any thread. A line of JSON each; the controller reads them all, also those of a pool that is dead."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # who reads it waits for its end
        self._pipe = pipe

    def say(self, sentence: str) -> None:
        self._write(ShowUser(sentence))

    def leave(self, key: RolloutKey, reason: str, log: str) -> NoReturn:
        self._write(BlockedBy(RolloutEnd(key, "agent_error", reason, log)))
        os._exit(BLOCKED)

    def leave_with(self, rollout: Rollout) -> NoReturn:
        self._write(BlockedByScorer(rollout))
        os._exit(BLOCKED)

    def leave_behind(self) -> NoReturn:
        os._exit(BLOCKED)

    def _write(self, message: FromPipe) -> None:
        rest = orjson.dumps(messages.header(message), default=str) + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
