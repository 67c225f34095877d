"""KV cache events of Dynamo's mocker, in a session: recorded, joined to calls, reported and exported."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_agentbench.backends.telemetry.engine_stats import tally
from pytest_agentbench.backends.telemetry.kv_cache import WORKER_METRIC, cache_engine, engines_by_name
from pytest_agentbench.backends.telemetry.kv_events import read_kv_events
from pytest_agentbench.backends.telemetry.samples import SampleSource, read_samples
from pytest_agentbench.cli import main
from pytest_agentbench.records import LLMCall
from pytest_agentbench.reports.page.data import run_data
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.run_file import read_run
from tests.real.booted_stack import run

pytestmark = pytest.mark.timeout(240)

RELAYED = "dynamo_component_kv_publisher_zmq_events_total"  # each worker counts the messages that it publishes, and passes on
BLOCK, BLOCKS = 16, 192  # tokens of a block, blocks of a worker

#: Sessions whose prompts do not fit into the caches together.
SESSIONS = ("sessions=8", "calls=[4,5]", "system_tokens=60", "first_tokens=[100,200]", "message_tokens=[60,120]", "think_s=0.01")


def computed(call: LLMCall) -> int:
    """Returns the blocks that an engine has to compute for a call, by the token counts in its answer: complete ones, except hits.

    Its last token is in no block, because the engine does not process it.
    """
    assert call.prompt_tokens is not None
    assert call.completion_tokens is not None
    assert call.cached_tokens is not None
    return (call.prompt_tokens + call.completion_tokens - 1) // BLOCK - call.cached_tokens // BLOCK


def test_events_of_a_session(tmp_path: Path) -> None:
    """Events are as many as the workers count. Stored blocks are those that the answers' token counts imply, and so are hits.

    A worker never holds more blocks than its cache has, and removes some as soon as that is full. Almost all stored blocks are joined to a
    call, although four workers have the calls of four sessions at the same time. The export for the NeMo Agent Toolkit has the hits.
    """
    changes = (
        f"backend.settings.blocks={BLOCKS}",
        "backend.settings.speedup=20",
        "backend.settings.policy=round-robin",
        *(f"dataset.options.{each}" for each in SESSIONS),
    )
    options = ("--agentbench-concurrency=4", *(f"--agentbench-set={each}" for each in changes))
    said = run("dynamo-mocker-events", tmp_path, *options, suite="sessions")
    directory = tmp_path / "latest"
    uses = {(use["service"], use["replica"]): use for use in said["kv_cache"]}

    events, counted = Counter[tuple[SampleSource, str]](), tally(read_samples(directory, {RELAYED, WORKER_METRIC.name}), None).increases
    for event in read_kv_events(directory):
        events[event.source, event.kind] += 1
    stages = {dict(series.labels).get("stage", "") for series in counted if series.name == RELAYED}
    for stage in stages:
        of_stage = {
            (series.source, dict(series.labels)["event_type"]): round(count)
            for series, count in counted.items()
            if series.name == RELAYED and dict(series.labels).get("stage", "") == stage and count
        }
        assert of_stage == events
    assert stages

    workers, rollouts = engines_by_name(counted), [*read_journal(directory, pytest.fail)]
    calls = [(workers[str(cache_engine(call))], call) for rollout in rollouts for call in rollout.calls]
    assert 8 == len(rollouts)
    assert {source for source, _ in calls} == {*uses} == {("worker", replica) for replica in range(4)}
    for worker, use in uses.items():
        own = [call for source, call in calls if source == worker]
        assert sum(map(computed, own)) == use["stored"]
        assert sum(call.cached_tokens or 0 for call in own) == use["hit_tokens"]
        assert BLOCKS >= use["peak"] >= use["stored"] - use["removed"]
        assert bool(use["removed"]) == (use["stored"] > BLOCKS)
    assert {BLOCK} == {use["block_size"] for use in uses.values()}
    assert 0 < sum(use["removed"] for use in uses.values())
    stored, joined = (sum(use[name] for use in uses.values()) for name in ("stored", "joined"))
    assert 0.8 * stored < joined <= stored

    assert "## KV cache events" in (directory / "report.md").read_text()
    assert "KV cache blocks removed per second" in str(page_lines(directory))
    main(["export", str(directory), "--as", "nat", "--output", str(tmp_path / "nat")])
    [file] = (tmp_path / "nat").rglob("inference_optimization.json")
    numbers = json.loads(file.read_text())["dynamo_metrics"]
    assert pytest.approx(numbers["kve_cached_tokens_rate"], rel=1e-9) == numbers["kve_device_blocks_rate"] * BLOCK


def page_lines(directory: Path) -> list[str]:
    """Returns the titles of the lines of server metrics in report.html."""
    return [line["title"] for line in run_data(read_run(directory), directory, pytest.fail).index["server"]]
