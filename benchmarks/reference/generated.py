"""Generates a run with many rollouts from a seed, without a session: journal, samples and facts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.reference.rebuild import RunInputs, write_inputs
from pytest_agentbench.backends.telemetry.engine_stats import Looks
from pytest_agentbench.backends.telemetry.samples import FILE as SAMPLES
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.metrics.stopwatch import CpuShares, Stopwatch
from pytest_agentbench.records import Chunk, Json, LLMCall, Rollout, Score, ToolCall
from pytest_agentbench.runs.builder import plan_suite
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import record_line
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.run_file import BackendUse, Environment, Plan, SessionFacts, SessionShare
from pytest_agentbench.scorers import load_scorer
from pytest_agentbench.scorers.declaration import scale_of
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite

ID = "20260304-050607"
NOON = 1_772_600_767.0  # seconds since 1970, when the run began
IN_FLIGHT = 16
MS = 1_000_000  # nanoseconds
TRIALS = 50


class Seed(NamedTuple):
    """The seed and the size of a generated run."""

    seed: int
    rollouts: int


def write_files(seed: Seed, directory: Path) -> None:
    """Writes the journal, the samples and the inputs (see `rebuild`) of the generated run."""
    write_inputs(inputs_of_seed(seed), directory)
    with (directory / JOURNAL).open("wb") as journal:
        for rollout in _rollouts(seed):
            journal.write(sealed(record_line(rollout)) + b"\n")
    lines = (json.dumps(_look(number)) for number in range(1, seed.rollouts // 100 + 1))
    (directory / SAMPLES).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def facts_of(seed: Seed) -> SessionFacts:
    """Returns the facts that a session would have recorded for the generated run."""
    return SessionFacts(
        id=ID,
        started_at="2026-03-04T05:06:07+00:00",
        finished_at="2026-03-04T05:16:07+00:00",
        command=("pytest", "scenarios/shop", f"--agentbench-trials={TRIALS}"),
        sessions=(SessionShare(1, "2026-03-04T05:06:07+00:00", IN_FLIGHT, 0),),
        verdict="PASS",
        exit_status=0,
        settings=RunOptions(backend="generated", concurrency=IN_FLIGHT, slo={"ttft": 150.0}, trials=TRIALS),
        environment=Environment("3.11", "generated", 8, {}, None),
        backend=BackendUse(name="generated", note="", kind="url", served_model="model", failure=""),
        plan=Plan(seed.rollouts, seed.rollouts, 0),
        stopwatch=Stopwatch(verdict=None),
    )


def suite_of_shop(seed: Seed) -> Suite:
    """Returns the suite of the generated rollouts."""
    scales = {name: scale_of(load_scorer(name)) for name in ("tsq", "repeated")}
    count = seed.rollouts // TRIALS
    scenarios = tuple(Scenario(_id(number), ({"role": "user", "content": f"Is there lamp {number}?"},)) for number in range(count))
    data = DatasetInfo("a shop (generated)", "agent-leaderboard", "data.json", "0" * 64, "generated", count)
    thresholds = {"tsq": 0.5, "tsq.mean": 0.6}
    asked: Json = {"scorers": {"tsq": {}, "repeated": {}}, "scales": scales, "thresholds": thresholds}
    return Suite("shop", Path("/project/scenarios/shop"), scenarios, dataset=data, **asked)


def inputs_of_seed(seed: Seed) -> RunInputs:
    """Returns the inputs of the generated run that are not in its journal or samples."""
    suite = suite_of_shop(seed)
    planned = plan_suite("shop", suite, thresholds=suite.thresholds)
    looks = Looks(notes=(), looks=seed.rollouts // 100, every_s=1.0, cpu_s=0.5)
    return RunInputs(facts=facts_of(seed), suites=(planned,), cpu=CpuShares(0.4, 0.3), looks=looks, arms=None)


def _id(number: int) -> str:
    return f"shop-{number:03}"


def _look(number: int) -> dict[str, object]:
    """Returns one sample of the server's metrics, as JSON. The counters rise evenly."""
    series = [["vllm:prefix_cache_hits_total", {}], ["vllm:prefix_cache_queries_total", {}], ["vllm:num_requests_running", {}]]
    first = {"first": True, "series": series} if number == 1 else {}
    when = {"round": number, "at": NOON + number, "ns": number * 1000 * MS}
    return {**when, "service": "engine", "replica": 0, **first, "values": [[0, number * 300], [1, number * 500], [2, number % 17]]}


def _rollouts(seed: Seed) -> Iterator[Rollout]:
    """Yields the rollouts. IN_FLIGHT of them run at the same time, in as many slots."""
    dice = random.Random(seed.seed)
    free = [0] * IN_FLIGHT  # monotonic nanoseconds at which each place is free
    for number in range(seed.rollouts):
        place = min(range(IN_FLIGHT), key=free.__getitem__)
        rollout = _rollout(number, free[place], dice)
        free[place] = rollout.ended_ns + MS
        yield rollout


def _rollout(number: int, start: int, dice: random.Random) -> Rollout:
    calls = tuple(_calls(start + MS, dice))
    failed = dice.random() < 0.01
    tools = tuple(ToolCall(name, {"item": "lamp"}, 1) for name in dice.choices(("find_item", "order_item"), k=2))
    right = len({call.name for call in tools}) / 2
    return Rollout(
        suite="shop",
        scenario=_id(number // TRIALS),
        variant="default",
        trial=number % TRIALS + 1,
        status="infra_error" if failed else "ok",
        reason="the backend refused a call" if failed else "",
        started_at=NOON + start / 1e9,
        started_ns=start,
        ended_ns=calls[-1].ended_ns + MS,
        calls=calls,
        tool_calls=tools,
        expected=({"tool": "find_item", "parameters": {}, "goal": ""}, {"tool": "order_item", "parameters": {}, "goal": ""}),
        turns=len(calls),
        messages=({"role": "user", "content": f"Is there lamp {number // TRIALS}?"},),
        scores={} if failed else {"tsq": Score(right), "repeated": Score(float(right < 1))},
    )


def _calls(start: int, dice: random.Random) -> Iterator[LLMCall]:
    for _ in range(2):
        first = start + dice.randint(80, 200) * MS
        stamps = [first + position * 10 * MS for position in range(3)]
        chunks = tuple(Chunk(at, "content", lag_ns=20_000) for at in stamps)
        usage: Json = {"prompt_tokens": 500, "completion_tokens": 3, "cached_tokens": 300, "token_source": "usage"}
        identity: Json = {"dialect": "chat", "streamed": True, "model": "model", "answered_by": "model", "http_status": 200}
        yield LLMCall(start, start, stamps[-1], chunks, finish_reason="stop", stamp="kernel", **usage, **identity)
        start = stamps[-1] + MS
