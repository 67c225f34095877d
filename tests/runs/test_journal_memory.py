"""The memory that indexing a journal needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.journal import FILE, record_line

READ = """
import resource, sys
from pathlib import Path
from pytest_agentbench.runs.journal import read_index

resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
print(len(read_index(Path(sys.argv[1])).entries))
"""


def test_a_long_reason_is_indexed_in_little_memory(tmp_path: Path) -> None:
    """A reason of 4 MB, as an earlier version may have written, can be indexed in 600 MB of address space."""
    record = Rollout("suite", "scenario", "default", 1, status="agent_error", reason='x"' * 2_000_000)
    (tmp_path / FILE).write_bytes(sealed(record_line(record)) + b"\n")
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=False)

    assert ("1", "") == (done.stdout.strip(), done.stderr)
