"""Whether the backend still answers, asked when calls of a rollout have failed as those to a dead one do."""

from __future__ import annotations

import asyncio

from pytest_agentbench.backends.proof.api import Api
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Rollout

PATIENCE = 10.0  # seconds that a backend may be away, where no budget of a connection says otherwise
PAUSE = 0.25  # seconds between two looks

#: How calls end that nobody answers.
UNANSWERED = ("connect", "timeout_connect", "timeout_first_token", "timeout_idle", "cut")


class HealthQuery:
    """Rollouts that fail together ask once."""

    def __init__(self, patience: float | None) -> None:
        """`patience` in seconds; None: the usual one."""
        self.patience = PATIENCE if patience is None else patience
        self._look: asyncio.Task[str] | None = None

    async def why_gone(self, endpoint: Endpoint) -> str:
        """Why the backend is not there, all the time that one is waited for; empty when it answers, whatever it says."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._feel(endpoint))
        return await asyncio.shield(self._look)

    async def _feel(self, endpoint: Endpoint) -> str:
        loop = asyncio.get_running_loop()
        late = loop.time() + self.patience
        while True:
            try:
                await asyncio.to_thread(Api(endpoint).get, "/models")
            except BackendError as error:
                if loop.time() >= late:
                    return f"for {self.patience:g} s {error}"
            else:
                return ""
            await asyncio.sleep(PAUSE)


def unanswered(rollout: Rollout) -> bool:
    """Whether nobody seems to have been there to answer a call of a rollout."""
    return rollout.status == "infra_error" and any(call.error_kind in UNANSWERED for call in rollout.calls)
