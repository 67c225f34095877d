"""What a pool says while its event loop stands still, and over what it ends itself: a pipe to the controller."""

from __future__ import annotations

import os
from typing import NoReturn

import orjson

from pytest_agentbench.lib import codec
from pytest_agentbench.records import Json, Rollout, RolloutKey

BLOCKED = 3  # exit status of a pool that ended itself because somebody held it up


class ControllerPipe:
    """For any thread. A line of JSON each; the controller reads them all, also those of a pool that is dead."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # who reads it waits for its end
        self._pipe = pipe

    def say(self, sentence: str) -> None:
        self._write({"say": sentence})

    def leave(self, key: RolloutKey, reason: str, log: str) -> NoReturn:
        self._write({"key": [*key], "end": {"status": "agent_error", "reason": reason, "log": log}})
        os._exit(BLOCKED)

    def leave_with(self, rollout: Rollout) -> NoReturn:
        self._write({"key": [*rollout.key], "end": {"rollout": codec.plain(rollout)}})
        os._exit(BLOCKED)

    def leave_behind(self) -> NoReturn:
        os._exit(BLOCKED)

    def _write(self, message: Json) -> None:
        rest = orjson.dumps(message, default=str) + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
