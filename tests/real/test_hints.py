"""Hints through the real frontend of NVIDIA Dynamo 1.6.1: which it takes, refuses and ignores, and what arrives behind it."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.tap.routing_hints import make_labels
from tests.real.booted_stack import Booted, booted, run

pytestmark = pytest.mark.timeout(180)

SECOND = 10.0  # seconds in which the second request of a speculative prefill arrives


class Frontend(NamedTuple):
    """Dynamo's frontend before a worker that writes down each request."""

    stack: Booted
    file: Path  # JSON lines: the requests as the worker got them

    def seen(self) -> list[Json]:
        """Returns the requests that the worker got so far."""
        return [*map(json.loads, self.file.read_text().splitlines())] if self.file.exists() else []

    def sent(self, fields: Json, headers: dict[str, str]) -> tuple[int, list[Json]]:
        """Sends a chat. Returns the status of the answer, and the requests that the worker got meanwhile."""
        before = len(self.seen())
        try:
            self.stack.chat("Hi", headers, **fields)
        except urllib.error.HTTPError as error:
            return error.code, self.seen()[before:]
        return 200, self.seen()[before:]


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with booted("tests/real/stacks/dynamo-request-log.yaml", tmp_path_factory.mktemp("stack")) as stack:
        yield Frontend(stack, stack.home / "run" / "seen.jsonl")


def hint(**hints: object) -> Json:
    return {"nvext": {"agent_hints": hints}}


ANNOTATIONS = ["prefix_id:abc", "total_requests:10", "osl:512", "iat:250"]


@pytest.mark.parametrize(
    ("fields", "routing"),
    [
        (hint(priority=5), {"priority": 5, "priority_jump": 5.0}),
        (hint(priority=-3), {"priority": -3, "priority_jump": 0.0}),
        (hint(strict_priority=2), {"strict_priority": 2}),
        (hint(osl=64), {"expected_output_tokens": 64}),
        (hint(latency_sensitivity=1.0), {"priority_jump": 1.0}),
        ({"nvext": {"annotations": ANNOTATIONS}}, {}),
        ({"user": "me"}, {}),
    ],
)
def test_fields_that_dynamo_takes(frontend: Frontend, fields: Json, routing: Json) -> None:
    """A hint that Dynamo takes is in the request that a router or worker behind the frontend gets. Annotations arrive unchanged."""
    status, (request,) = frontend.sent(fields, {})

    assert (200, routing) == (status, request["routing"])
    assert fields.get("nvext", {}).get("annotations", []) == request["annotations"]
    assert None is request.get("agent_context")


@pytest.mark.parametrize(
    "fields",
    [
        hint(priority="high"),
        hint(strict_priority=-1),
        *(hint(**{name: 3}) for name in ("prefix_id", "total_requests", "iat", "policy_class")),
        {"nvext": {"cache_control": {"type": "ephemeral", "ttl": "3s"}}},
        {"nvext": {"total_requests": 3}},
        {"priority": 1},
        {"program_id": "a"},
        {"vllm_xargs": {}},
    ],
)
def test_fields_that_dynamo_refuses(frontend: Frontend, fields: Json) -> None:
    """Dynamo refuses wrong and unknown hints with HTTP 400. Among them are those that the client of the NeMo Agent Toolkit sends."""
    assert (400, []) == frontend.sent(fields, {})


@pytest.mark.parametrize(
    ("headers", "routing"),
    [
        ({"x-dynamo-request-priority": "7"}, {"priority": 7, "priority_jump": 7.0}),
        ({"x-dynamo-request-strict-priority": "2"}, {"strict_priority": 2}),
        ({"x-dynamo-request-priority": "high"}, {}),
        ({"session-id": "s"}, {}),
        ({"x-prefix-id": "s", "x-prefix-total-requests": "7", "x-prefix-osl": "64", "x-prefix-iat": "250"}, {}),
    ],
)
def test_headers(frontend: Frontend, headers: dict[str, str], routing: Json) -> None:
    """Dynamo takes a priority as a header, too. It ignores a priority that is no number, and headers that it does not know."""
    status, (request,) = frontend.sent({}, headers)

    assert (200, routing, None) == (status, request["routing"], request.get("agent_context"))


@pytest.mark.parametrize("header", ["x-dynamo-session-id", "x-session-id", "x-claude-code-session-id"])
def test_headers_of_sessions(frontend: Frontend, header: str) -> None:
    """Each of these headers names the session."""
    status, (request,) = frontend.sent({}, {header: "s"})

    assert (200, "s") == (status, request["agent_context"]["session_id"])


def test_speculative_prefill(frontend: Frontend) -> None:
    """After the answer to a call with this hint, an engine gets a second request that is longer and has no session."""
    before, end = len(frontend.seen()), time.monotonic() + SECOND
    frontend.stack.chat("Hi", {"x-dynamo-session-id": "s"}, **hint(speculative_prefill=True))
    while len(frontend.seen()) < before + 2 and time.monotonic() < end:
        time.sleep(0.05)
    first, second = frontend.seen()[before:]

    assert ("s", None) == (first["agent_context"]["session_id"], second.get("agent_context"))
    assert len(first["token_ids"]) < len(second["token_ids"])


def test_second_requests_are_counted_apart(tmp_path: Path) -> None:
    """In a session with this hint, engines answer a second request after each call. Their counters have exactly both."""
    quick = {"backend.services.worker.replicas": 1, "backend.ready.workers.aggregated": 1, "backend.settings.speedup": 100}
    sets = {"backend.labels.speculative_prefill": True, **quick}
    options = [f"--agentbench-set={path}={json.dumps(value)}" for path, value in sets.items()]
    (engines,) = run("dynamo-mocker", tmp_path, "--agentbench-limit=2", *options)["engines"]
    calls = engines["tap_calls"]

    assert calls > 0
    assert (2 * calls, calls, 0, []) == (
        sum(each["calls"] for each in engines["engines"]),
        engines["second_requests"],
        engines["uncertain_calls"],
        engines["warnings"],
    )


def test_labels(frontend: Frontend) -> None:
    """All hints of a backend's YAML arrive behind the frontend, those of a role in its calls."""
    options = {"priority": 5, "osl": 64, "total_requests": 10, "iat": 250, "prefix": "{suite}.{role}", "roles": {"judge": {"priority": -1}}}
    labels = make_labels({"kind": "dynamo", **options})
    arrived = []
    for role in ("", "judge"):
        label = labels.of_rollout("s", RolloutKey("shop", "shop-1"), role)
        status, (request,) = frontend.sent(dict(label.fields), dict(label.headers))
        assert 200 == status
        arrived.append((request["routing"], request["agent_context"]["session_id"], request["annotations"]))
    further = ["total_requests:10", "osl:64", "iat:250"]

    assert [
        ({"priority": 5, "priority_jump": 5.0, "expected_output_tokens": 64}, "s", ["prefix_id:shop.agent", *further]),
        ({"priority": -1, "priority_jump": 0.0, "expected_output_tokens": 64}, "s", ["prefix_id:shop.judge", *further]),
    ] == arrived


NOT_MEASURED = 6  # exit status of a session whose judge answers with no judgement

PATIENT, URGENT = 12, 4  # calls
GAP = 0.02  # seconds between two calls

#: Where the calls of a test wait -> changes of `dynamo-mocker`.
QUEUES: dict[str, Sequence[tuple[str, Any]]] = {
    "router": [("settings.policy", "kv-queue")],
    "engine": [("settings.policy", "kv")],
}
ONE_WORKER = [("services.worker.replicas", 1), ("ready.workers.aggregated", 1), ("settings.speedup", 1)]
MOCKER = [
    *("python", "{here}/dynamo_mocker.py", "{run_dir}/model", "--model-name={model}", "--profile={profile}"),
    *("--speedup-ratio={speedup}", "--block-size=16", "--num-gpu-blocks-override={blocks}"),
]


def mean_place(stack: Booted, hints: Json) -> float:
    """Sends calls of a judge and then calls of an agent. Returns the mean place of the agent's calls among all answers, from 1.

    `hints` are those of the agent. The judge has none.
    """
    labels = make_labels({"kind": "dynamo", **hints, "roles": {"judge": dict.fromkeys(hints, 0)}})
    answered: list[str] = []

    def call(number: int, role: str) -> None:
        label = labels.of_rollout(f"s{number}", RolloutKey("shop", f"shop-{number}"), role)
        stack.chat(f"{len(hints)} {number} {'The sky is blue and wide. ' * 300}", label.headers, **label.fields)
        answered.append(role)

    with ThreadPoolExecutor(PATIENT + URGENT) as calls:
        for number in range(PATIENT + URGENT):
            calls.submit(call, number, "judge" if number < PATIENT else "")
            time.sleep(GAP)
    return sum(place for place, role in enumerate(answered, 1) if not role) / URGENT


@pytest.mark.parametrize(
    ("queue", "hints", "overtake"),
    [
        ("router", {}, False),
        ("router", {"priority": 10}, True),
        ("router", {"strict_priority": 10}, True),
        ("engine", {"priority": 10}, False),
    ],
)
def test_priorities(tmp_path: Path, queue: str, hints: Json, overtake: bool) -> None:
    """Urgent calls overtake those of a judge in the queue of Dynamo's router. In the queue of a mocker they do not."""
    seats = ["--max-num-seqs=1"] if queue == "engine" else []
    changes = [*ONE_WORKER, ("services.worker.run", [*MOCKER, *seats]), *QUEUES[queue]]
    with booted("dynamo-mocker", tmp_path, changes) as stack:
        place = mean_place(stack, hints)

    assert overtake == (place < 10.5)  # 14.5 is the order of arrival, 2.5 the best place


def test_priorities_of_roles_in_a_session(tmp_path: Path) -> None:
    """In a session, calls of the judge have the hints of their role, and calls of the agent those of the backend.

    The worker answers with a single token, so no judgement can be read.
    """
    file = tmp_path / "seen.jsonl"
    worker = ["python", "{here}/request_log_worker.py", "{model}", "{run_dir}/model", str(file)]
    labels = {"kind": "dynamo", "priority": 5, "roles": {"judge": {"priority": 1}}}
    sets = {"backend.services.worker.run": worker, "backend.labels": labels, "agent.max_retries": 0}
    options = [f"--agentbench-set={path}={json.dumps(value)}" for path, value in sets.items()]
    stack = "tests/real/stacks/dynamo-request-log.yaml"
    run(stack, tmp_path, "--agentbench-agent=self_evaluating", "--agentbench-limit=2", *options, status=NOT_MEASURED)
    requests = [*map(json.loads, file.read_text().splitlines())]
    sessions = {request["agent_context"]["session_id"]: request["routing"]["priority"] for request in requests if request["agent_context"]}
    of_rollouts = {id: priority for id, priority in sessions.items() if not id.startswith("agentbench-probe")}

    assert {("judge", 1), ("agent", 5)} == {("judge" if id.endswith("-judge") else "agent", hint) for id, hint in of_rollouts.items()}
