"""nodes.jsonl: the last state of each node worker, and the CPU use of its processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_agentbench.runs.nodes import FILE, NodeCpu, NodeLog, NodeRecord, clock_share, connect_times, read_cpu, read_nodes

W1 = NodeRecord(1, "w1", "node-a", 4, 8, 0, "3.11", "2026-03-04T05:06:07+00:00")
SECOND = 1_000_000_000


def unchanged(text: str) -> str:
    return text


def ignored(sentence: str) -> None:
    del sentence


def log_of(directory: Path, redact: Any = unchanged, notify: Any = ignored) -> NodeLog:
    return NodeLog(directory, redact, notify)


def test_the_last_state_of_each_node_worker_counts(tmp_path: Path) -> None:
    """The file has a line for each change. Equal names of different sessions are different node workers. Without a file there are none."""
    log = log_of(tmp_path)
    other, gone = replace(W1, name="w2"), replace(W1, attempts=7, lost=2, left_at="now", why_left="its tap died")
    for entry in (W1, other, gone):
        log.append(entry)
    log.close()
    later = log_of(tmp_path)
    later.append(again := replace(W1, session=2))
    later.close()

    assert () == read_nodes(tmp_path / "other")
    assert (gone, other, again) == read_nodes(tmp_path)


def test_node_workers_of_a_pool_that_died(tmp_path: Path) -> None:
    """When a pool dies, node workers that have not left are noted as having done so, once. Those of other sessions stay as they are."""
    earlier = log_of(tmp_path)
    earlier.append(W1)
    earlier.close()
    log = log_of(tmp_path)
    log.append(here := replace(W1, session=2))
    log.append(replace(here, name="w2"))
    log.append(left := replace(here, name="w2", left_at="before", why_left="SIGTERM"))

    log.pool_died()
    log.append(joined := replace(here, name="w1-2"))
    log.close()

    other_session, ended, kept, new = read_nodes(tmp_path)
    assert (W1, left, joined) == (other_session, kept, new)
    assert ("the pool died", True) == (ended.why_left, ended.left_at is not None)


def test_samples(tmp_path: Path) -> None:
    """Samples of a process are collected over all lines of the file, by session and node worker."""
    log = log_of(tmp_path)
    log.append(NodeCpu(1, "w1", {"tap": ((0, SECOND, 0.5),), "runner": ((0, SECOND, 0.25),)}))
    log.append(NodeCpu(1, "w1", {"tap": ((SECOND, 2 * SECOND, 0.75),)}))
    log.append(NodeCpu(1, "w2", {"tap": ((0, SECOND, 1.0),)}))
    log.close()

    w1 = {"tap": [(0, SECOND, 0.5), (SECOND, 2 * SECOND, 0.75)], "runner": [(0, SECOND, 0.25)]}
    assert {(1, "w1"): w1, (1, "w2"): {"tap": [(0, SECOND, 1.0)]}} == read_cpu(tmp_path)


def test_damaged_lines_are_ignored(tmp_path: Path) -> None:
    """A line that is incomplete, of which a byte has changed, or that this version does not know, does not hide the others."""
    log = log_of(tmp_path)
    log.append(W1)
    log.append(replace(W1, name="w2"))
    log.close()
    path = tmp_path / FILE
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first.replace(b"node-a", b"node-b") + b'{"entry":["Other",{}]}\n' + second + second[:-20])

    again = log_of(tmp_path)
    again.append(last := replace(W1, session=2, name="w3"))
    again.close()

    assert (replace(W1, name="w2"), last) == read_nodes(tmp_path)


def test_texts_are_redacted(tmp_path: Path) -> None:
    """Secrets in a reason do not reach the file."""
    log = log_of(tmp_path, redact=lambda text: text.replace("sk-123", "***"))
    log.append(replace(W1, why_left="the key sk-123 is wrong"))
    log.close()

    assert "the key *** is wrong" == read_nodes(tmp_path)[0].why_left


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """If lines cannot be written, there is one warning, and no exception."""
    told: list[str] = []
    (tmp_path / FILE).symlink_to("/dev/full")
    log = log_of(tmp_path, notify=told.append)
    log.append(W1)
    log.append(W1)
    log.close()

    assert [f"{tmp_path / FILE} cannot be written: [Errno 28] No space left on device; the report may lack facts about nodes"] == told


def test_uncertainty_of_rates() -> None:
    """The widest bounds of a session count, as a share of the time. If the time is that of several sessions, each counts."""
    nodes = [replace(W1, clock_width_ms=width, session=session) for session, width in ((1, 10.0), (1, 30.0), (1, None), (2, 20.0))]

    assert (0.003, 0.005, 0.0, 0.0) == (clock_share(nodes[:3], 10), clock_share(nodes, 10), clock_share([], 10), clock_share(nodes, 0))


def test_connect_times_that_differ() -> None:
    """Times are returned if the greatest is more than a millisecond above the least. Of one machine the least counts."""
    near, far = replace(W1, connect_ms=0.25), replace(W1, name="w2", node="node-b", connect_ms=1.26)

    assert {"w1 on node-a": 0.25, "w2 on node-b": 1.26} == connect_times([near, far, replace(W1, name="w3")])
    local = [replace(near, node="local-1"), replace(far, node="local-2")]
    assert {"w1 on local-1": 0.25, "w4 on node-c": 9.0} == connect_times([*local, replace(W1, name="w4", node="node-c", connect_ms=9.0)])
    assert {} == connect_times(local) == connect_times([near, replace(far, node="node-a")])
    assert {} == connect_times([near, replace(far, connect_ms=1.25)]) == connect_times([W1]) == connect_times([])
