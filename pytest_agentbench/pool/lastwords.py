"""What a pool says when it ends itself over a rollout: the next one records that rollout, and goes on with the others."""

from __future__ import annotations

import json
import os
from typing import NoReturn

from pytest_agentbench.records import RolloutKey

BLOCKED = 3  # exit status of a pool that has said which rollout held it up


class LastWords:
    """The pool's end of a pipe to the controller, which reads it when the pool is dead. For any thread: it needs no event loop."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def leave(self, key: RolloutKey, reason: str) -> NoReturn:
        """Ends this process at once. The rollout ends as `agent_error` for this reason; the others in flight run again."""
        os.write(self._pipe, json.dumps({"key": key, "reason": reason[:2000]}).encode() + b"\n")
        os._exit(BLOCKED)
