"""backends/vllm_ray.py, which starts Ray on several hosts, with a small program in place of Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import wait_for

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).parents[2] / "backends" / "vllm_ray.py"

#: In place of the command `ray`: a head runs until SIGTERM; a host joins if there is a head, and runs until that ends.
RAY = """#!/bin/bash
cd "$(dirname "$0")"
case "$*" in
  *--head*) trap 'rm head; exit 0' TERM; touch head; while :; do sleep 0.05; done ;;
  *) [ -e head ] || { echo no head; exit 1; }; touch "host$$"; while [ -e head ]; do sleep 0.05; done ;;
esac
"""

#: In place of the package `ray`.
MODULE = """
from pathlib import Path

here = Path(__file__).parent


def init(address, log_to_driver):
    assert "10.0.0.7:6379" == address


def nodes():
    return [{"Alive": True} for _ in [*here.glob("head"), *here.glob("host*")]]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment with the programs in place of Ray."""
    (tmp_path / "ray").write_text(RAY)
    (tmp_path / "ray").chmod(0o755)
    (tmp_path / "ray.py").write_text(MODULE)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}


def start(environment: dict[str, str], rank: int, *command: str) -> subprocess.Popen[str]:
    words = [sys.executable, str(PROGRAM), f"--rank={rank}", "--hosts=2", "--leader=10.0.0.7", "--port=6379", "--", *command]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_hosts(environment: dict[str, str], tmp_path: Path) -> None:
    """The second host joins when the head is there, and only then the command runs on the first. Its exit code ends both."""
    second = start(environment, 1, "never")
    assert second.stdout is not None
    assert "no head\n" == second.stdout.readline()
    first = start(environment, 0, sys.executable, "-c", f"import os; print(len(os.listdir({str(tmp_path)!r}))); raise SystemExit(3)")
    output, _ = first.communicate(timeout=60)

    assert (3, 0) == (first.returncode, second.wait(60))
    assert not (tmp_path / "head").exists()
    assert 1 == len([*tmp_path.glob("host*")])
    second.stdout.close()
    assert output.strip().isdecimal()


def test_a_head_that_dies(environment: dict[str, str], tmp_path: Path) -> None:
    """If Ray's head does not start, the first host says so, and runs no command."""
    (tmp_path / "ray").write_text("#!/bin/sh\necho port in use; exit 1\n")
    first = start(environment, 0, "touch", str(tmp_path / "served"))
    wait_for(lambda: first.poll() is not None, "the end", 60)
    output, _ = first.communicate()

    assert 1 == first.returncode
    assert output.endswith("0 of 2 hosts have joined Ray at 10.0.0.7:6379\n")
    assert not (tmp_path / "served").exists()
