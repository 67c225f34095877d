"""Whatever runs the tests, also `make test-slow` and `.ci/run`, prints a line about each thing that cannot be tested on a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_engine_that_does_not_start(tmp_path: Path, workers: str) -> None:
    """If dockerd is installed but does not start, the tests of sandboxes are skipped, and one line at the end says why."""
    fails = tmp_path / "dockerd"
    fails.write_text("#!/bin/sh\necho 'no cgroups are mounted' >&2; exit 1\n")
    fails.chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow",
        "-n",
        workers,
        "tests/sandbox/test_containers_limits.py",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    told = [line for line in done.stdout.splitlines() if line.startswith("NOT TESTED")]
    why = "dockerd does not start here: no cgroups are mounted" if not os.geteuid() else "to start one takes root and dockerd"
    assert 0 == done.returncode, done.stdout + done.stderr
    assert 1 == len(told), done.stdout
    assert told[0].startswith("NOT TESTED: sandboxes; ")
    assert why in told[0]
    assert told[0].endswith("  [5 tests]")
