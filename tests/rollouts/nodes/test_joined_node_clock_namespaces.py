"""Clocks of real processes with other monotonic clocks, in time namespaces of Linux."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from pytest_agentbench.metrics.performance import PerformanceSettings, summarize
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.nodes.joined_node import NodeClock
from tests.frames import frame_of

SECOND = 1_000_000_000
#: A node: answers each line with the time on its clock.
NODE = "import sys, time\nfor line in sys.stdin:\n    print(time.monotonic_ns(), flush=True)\n"


@contextmanager
def node(ahead_s: int) -> Iterator[tuple[IO[str], IO[str]]]:
    """Yields stdin and stdout of a node whose clock is ahead of the clock of this process."""
    command = ["unshare", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"NOT TESTED: clocks of nodes; it takes time namespaces: {tried.stderr.strip()}")
    with subprocess.Popen([*command, sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdin, process.stdout
        process.stdin.close()


def exchange(clock: NodeClock, pipes: tuple[IO[str], IO[str]]) -> int:
    """Exchanges messages with a node, and notes their order. Returns the time on the node's clock."""
    sent = time.monotonic_ns()
    print("tick", file=pipes[0], flush=True)
    node_ns = int(pipes[1].readline())
    clock.before(sent, node_ns)
    clock.after(node_ns, time.monotonic_ns())
    return node_ns


def test_the_offset_of_a_real_clock() -> None:
    """The offset of a clock that is a day and 500 s ahead lies within the bounds, without any time limit on the messages."""
    for ahead_s in (86_400, 500):
        clock = NodeClock()
        with node(ahead_s) as pipes:
            for _ in range(5):
                exchange(clock, pipes)

        assert abs(clock.offset_ns + ahead_s * SECOND) <= clock.width_ns / 2 + 1


def test_rates_over_nodes_with_other_clocks() -> None:
    """Rollouts of one second that ran at the same time on three nodes ran within seconds of each other, once they are placed. Before, a
    day lay between them, and so the rate was wrong by a factor of thousands.
    """
    raw, moved = [], []
    for number, ahead_s in enumerate((0, 500, 86_400)):
        clock = NodeClock()
        with node(ahead_s) as pipes:
            started = exchange(clock, pipes)
            raw.append(Rollout("shop", f"s{number}", "default", 1, "ok", started_ns=started, ended_ns=started + SECOND))
            moved.append(clock.place(raw[-1]))

    wrong, right = (summarize(frame_of(*rollouts), PerformanceSettings()) for rollouts in (raw, moved))

    assert 86_400 < wrong.span_s
    assert 1 <= right.span_s < 600  # the processes of three nodes were started within this time
    assert {SECOND} == {each.ended_ns - each.started_ns for each in moved}
