"""Sandboxes and slots of rollouts, in a real Docker Engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.sandbox.factory import Sandboxes
from pytest_agentbench.sandbox.verifier import verify
from tests.sandbox.conftest import KEY, listed, runs, task

pytestmark = pytest.mark.slow

VERIFIER = "#!/bin/bash\nsleep 1\necho 1 > /logs/verifier/reward.txt\n"


async def test_a_verifiers_own_sandbox(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox of a separate verifier uses the slot of its rollout, in whose sandbox no process of the agent is left.

    No other rollout gets the slot in between. So rollouts cannot wait for each other if all slots are taken.
    """
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    script = tmp_path / "tests" / "test.sh"
    script.parent.mkdir()
    script.write_text(VERIFIER)
    asked, opening = task(tmp_path, separate_verifier=True), Sandboxes("a-run", 1, print)
    sandbox = await opening.task(KEY, asked, 60)
    await sandbox.exec("(setsid sleep 999 >/dev/null 2>&1 &)", seconds=10)
    (first,) = listed(engine)
    waiting = asyncio.create_task(opening.task(KEY, asked, 60))
    try:
        verifying = asyncio.create_task(verify(sandbox, asked))
        most, idle = 1, True
        while not verifying.done():
            there = await asyncio.to_thread(listed, engine)
            most = max(most, len(there))
            idle &= len(there) < 2 or not await asyncio.to_thread(runs, first, "sleep 999")
            await asyncio.sleep(0.05)
        verification = await verifying
        await asyncio.sleep(0.5)  # longer than the interval between two checks for a slot
        came_in = waiting.done()
    finally:
        await sandbox.end()
        await (await waiting).end()

    assert (1.0, 2) == (verification.reward, most)
    assert idle
    assert not came_in
    assert [] == listed(engine, all=True)
