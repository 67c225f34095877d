"""Limits of sandboxes that need an engine with quotas."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.sandbox.containers import KIND
from pytest_agentbench.sandbox.factory import open_sandbox
from tests.sandbox.bridged import IMAGE
from tests.sandbox.conftest import KEY, BridgedEngine, task

pytestmark = pytest.mark.slow

#: Writes files of 1 MiB until the disk is full.
WRITE = "for i in {1..99}; do head -c 1048576 /dev/zero > $i 2>/dev/null || break; done; echo $((i - 1))"


async def test_quotas(bridged: BridgedEngine, tmp_path: Path) -> None:
    """`storage_mb` limits all files together, whatever the size of the image. After files are removed, writing works again."""
    bridged()
    sandbox = await open_sandbox(KEY, task(tmp_path, image=IMAGE, storage_mb=16), 60)
    try:
        written = await sandbox.exec(WRITE, seconds=60)
        again = await sandbox.exec(f"rm *; {WRITE}", seconds=60)
    finally:
        await sandbox.end()

    assert KIND == sandbox.kind
    assert 8 <= int(written.output) <= 16
    assert int(again.output) >= 1
