"""The Thompson-sampling router within the real NVIDIA Dynamo, without a GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_agentbench.backends.stack import ownership
from pytest_agentbench.records import Json
from pytest_agentbench.router.decision_log import LoggedDecision, read_decisions
from tests.client_load import Load
from tests.real.booted_stack import Booted, booted, run
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(300)

CLIENTS = 6
LIMIT = 120  # seconds for what should take a few

#: A text of several blocks of the cache.
PREFIX = "The sky is blue, and the sea is as well, but it is not known why they are so. " * 20


def load_on(stack: Booted) -> Load:
    """Returns clients that make calls in sessions of five calls each."""
    return Load(CLIENTS, lambda client, number: (status(stack, f"{client}-{number // 5}", max_tokens=30), ""))


def status(stack: Booted, session: str, **fields: Any) -> int:
    """Makes a call of a session, and returns the status of its answer."""
    try:
        stack.chat(f"{session} says hello", {"x-dynamo-session-id": session}, **fields)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def decisions(stack: Booted) -> list[LoggedDecision]:
    """Returns the decisions whose calls have ended."""
    return [*read_decisions(stack.folder / "decisions.jsonl")]


def ended(stack: Booted, wanted: Callable[[LoggedDecision], bool]) -> list[LoggedDecision]:
    """Waits for a decision that is wanted, and returns all such ones."""
    return wait_for(lambda: [each for each in decisions(stack) if wanted(each)], "a decision in the log", LIMIT)


def metric(stack: Booted, name: str) -> float:
    """Returns a metric of the router, summed over its workers."""
    (port,) = (json.loads(line)["port"] for line in stack.log("router").splitlines() if line.startswith("{"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT) as answer:
        page = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^thompson_router_{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def mocker(stack: Booted) -> psutil.Process:
    """Returns the process of one of the workers."""
    processes = [psutil.Process(pid) for pid, home in ownership.processes() if home == str(stack.home)]
    return next(each for each in processes if any(word.endswith("dynamo_mocker.py") for word in each.cmdline()))


@contextmanager
def another(worker: psutil.Process) -> Iterator[None]:
    """Starts a worker with the command and the environment of another one."""
    environment = {**worker.environ(), "DYN_SYSTEM_PORT": "0"}
    with subprocess.Popen(worker.cmdline(), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def test_hints_overlaps_and_workers(tmp_path: Path) -> None:
    """Sessions and hints arrive, overlaps are those of the workers' caches, and workers join and die under load.

    If a worker is killed, only calls fail that it was answering. A worker that joins gets calls.
    """
    with booted("dynamo-thompson", tmp_path, [("settings.speedup", 1)]) as stack:
        named = hints_arrive(stack)
        assert [] == stack.exposed()
        victim = mocker(stack)
        known = {*ended(stack, lambda each: each.decision == 1)[0].scores}
        with another(victim), load_on(stack) as load:
            joined = ended(stack, lambda each: each.worker not in known and each.ending == "answered")[0].worker
            os.kill(victim.pid, signal.SIGKILL)
            dead = time.monotonic()
            wait_for(lambda: load.answered_after(dead) > 100, "calls after the death", LIMIT)
            ended(stack, lambda each: len(each.scores) == 4 and joined in each.scores and not known <= each.scores.keys())
        failed = [each for each in load.calls if each.status != 200]
        log = decisions(stack)

        assert metric(stack, "decisions_total") >= len(log)
        assert 0 < metric(stack, "sticky_decisions_total")

    assert 4 == len(known)
    assert named <= known
    assert [] == [each for each in failed if each.began > dead]
    assert {500} >= {each.status for each in failed}
    assert len(failed) == sum(each.ending == "failed" for each in log) <= CLIENTS


def hints_arrive(stack: Booted) -> set[str]:
    """Makes calls with hints in each form, wrong ones and one that its client ends, and checks their decisions. Returns their workers."""
    asked: Json = {"extra_fields": ["worker_id", "engine_data"]}
    named: set[str] = set()
    for _ in range(3):
        fields = {**asked, "agent_hints": {"osl": 64}, "annotations": ["prefix_id:talk", "total_requests:3", "iat:20"]}
        answer = stack.chat(PREFIX, {"x-dynamo-session-id": "s"}, nvext=fields)
        named.add(str(answer["nvext"]["engine_data"]["worker_id"]))
        assert answer["nvext"]["worker_id"]["decode_worker_id"] != answer["nvext"]["engine_data"]["worker_id"]
        time.sleep(0.2)  # until the worker's KV events have arrived
    stack.chat(PREFIX, {"x-session-id": "other"})
    assert 400 == status(stack, "s", nvext={"annotations": ["osl:long"]})
    body = json.dumps({"model": stack.model, "stream": True, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20_000})
    request = urllib.request.Request(f"{stack.url}/chat/completions", body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT) as stream:
        stream.readline()
    (gone,) = ended(stack, lambda each: each.ending == "disconnected")
    talk = ended(stack, lambda each: each.prefix == "talk")

    assert named == {each.worker for each in talk}
    assert [(3, reuse, "LOW", "LOW", 8) for reuse in (2, 1, 0)] == [
        (each.total, each.reuse, each.osl, each.iat, each.output_tokens) for each in talk
    ]
    assert [each.worker in {earlier.worker for earlier in talk[:number]} for number, each in enumerate(talk)] == [
        each.overlap > 0.5 for each in talk
    ]
    assert ("", True) == (gone.prefix, gone.reward is not None)
    assert 1 == len(ended(stack, lambda each: each.prefix == "other"))
    return named


def test_banking(tmp_path: Path) -> None:
    """Scores and number of calls are those of an engine alone, and so those of plain Dynamo (test_embedded).

    Workers, engines and log counted as many calls as the tap. The calls of the record name the workers, and not the processor.
    """
    said = run("", tmp_path, "--agentbench-limit=6", "--agentbench-ab=embedded,dynamo-thompson-embedded")
    scores = [suite["scores"]["tsq"]["mean"]["value"] for suite in said["suites"].values()]
    alone, routed = said["engines"]
    (log,) = (tmp_path / "latest" / "backend").glob("*thompson*/decisions.jsonl")
    calls = [each for each in read_decisions(log) if "banking" in each.prefix]
    used: dict[str, list[str]] = {}
    for each in calls:
        used.setdefault(each.prefix, []).append(each.worker)
    several = [workers for workers in used.values() if len(workers) > 1]

    assert (2, 1) == (len(scores), len({*scores}))
    assert (6, True) == (len(used), len(calls) > 6)
    assert len(calls) == alone["tap_calls"] == routed["tap_calls"]
    assert {"engine": len(calls), "worker": len(calls)} == {
        service: sum(each["calls"] for each in routed["engines"] if each["service"] == service) for service in ("engine", "worker")
    }
    assert (len(several), sum(len({*workers}) == 1 for workers in several)) == (routed["traced"], routed["stayed"])
    assert Counter(each.worker for each in calls) == routed["named"]
