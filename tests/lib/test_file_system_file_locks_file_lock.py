"""Locks of files."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from pytest_agentbench.lib.file_system import lock

HOLDER = """
import sys
from pytest_agentbench.lib.file_system import lock
file = open(sys.argv[1], "rb")
print(lock(file), flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    """While a process holds a lock, no other process gets it, shared or not. SIGKILL releases it at once."""
    path = tmp_path / "lock"
    path.touch()
    with (
        subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder,
        path.open("rb") as file,
    ):
        assert holder.stdout is not None
        assert "True\n" == holder.stdout.readline()
        assert not lock(file)
        assert not lock(file, shared=True)

        with ThreadPoolExecutor() as threads:
            waiter = threads.submit(lock, file, wait=True)
            wait([waiter], 0.2)
            holder.kill()

            assert waiter.result()


def test_shared_locks(tmp_path: Path) -> None:
    """Several processes can hold a shared lock."""
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as first, path.open("rb") as second:
        assert lock(first, shared=True)
        assert lock(second, shared=True)
        assert not lock(second)
