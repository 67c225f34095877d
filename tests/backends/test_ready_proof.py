"""The readiness checks, with labels, against real servers on 127.0.0.1."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_agentbench.backends.api import NeverReady, probe
from pytest_agentbench.backends.probe_rollout import check_labels
from pytest_agentbench.backends.ready import ReadinessChecks
from pytest_agentbench.backends.stack.spec import ReadySpec
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint
from tests.backends.conftest import SERVICE
from tests.labelled_router import routing

pytestmark = pytest.mark.timeout(60)

BODY = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1}


@contextmanager
def small(*options: str, key: str | None = None) -> Iterator[Endpoint]:
    """Runs the small server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(SERVICE), "--port", str(port), *options])
    try:
        yield Endpoint(f"http://127.0.0.1:{port}/v1", "", api_key=key)
    finally:
        server.kill()
        server.wait()


def climbed(endpoint: Endpoint, *, seconds: float = 20, **keys: Any) -> list[tuple[str, str]]:
    checks = ReadinessChecks(endpoint, ReadySpec(**keys), time.monotonic() + seconds)
    return [(check.name, check.detail) for check in checks.run_checks()]


def test_every_check() -> None:
    """The checks pass in order. Without a model name, the first listed model is used."""
    with small() as endpoint:
        checks = climbed(endpoint, in_a_row=3, workers={"decode": 1})

    place = endpoint.url.removeprefix("http://").removesuffix("/v1")
    expected = [("port", place), ("models", "tiny"), ("workers", "2 decode"), ("chat", "3 in a row"), ("tools", "get_weather")]
    assert expected == checks


def test_a_dead_worker_is_counted() -> None:
    """After a death, the checks wait until Dynamo lists no more workers than before, because it would send calls to the dead one."""
    with small() as endpoint:
        climbed(endpoint)
        check = ReadinessChecks(endpoint, ReadySpec(workers={"decode": 1}), time.monotonic() + 0.5).run_silent_checks
        check({"decode": 2})
        with pytest.raises(BackendError, match=r"/models/tiny/ready still counts a worker that has died: 2 decode, not 1$"):
            check({"decode": 1})


def test_a_port_without_a_server() -> None:
    """The checks end at the deadline, with the failed check and its reason."""
    with pytest.raises(BackendError, match=r"^not ready in time, check `port` failed: nothing listens on 127.0.0.1:9 \("):
        climbed(Endpoint("http://127.0.0.1:9/v1", "tiny"), seconds=0.3)


def test_a_death_ends_the_checks() -> None:
    """The callback that reports dead services is called before every attempt."""

    def dead() -> None:
        raise BackendError("the engine is dead")

    with pytest.raises(BackendError, match="the engine is dead"):
        list(ReadinessChecks(Endpoint("http://127.0.0.1:9/v1", "tiny"), ReadySpec(), alive=dead).run_checks())


def test_speed() -> None:
    """The probe measures the time to the first token. An answer of one token has no rate."""
    with small("--think", "0.05") as endpoint:
        climbed(endpoint)
        speed = probe(endpoint)

    assert 50 <= speed.ttft_ms <= speed.e2e_ms
    assert None is speed.tokens_per_s


@pytest.mark.parametrize(
    ("labels", "proven"),
    [
        ({"kind": "thunderagent"}, "announced and released"),
        ({"kind": "dynamo"}, "announced"),
        ({"kind": "dynamo", "release": True}, "announced and released"),
    ],
    ids=["thunderagent", "dynamo", "dynamo with a router for programs"],
)
def test_labels_pass_the_router(labels: dict[str, Any], proven: str) -> None:
    """A call is announced, and released if the stack needs it. The router forgets the probe."""
    with routing() as router:
        assert proven == check_labels(Endpoint(router.url, "m", labels=labels), BODY)
        assert 1 == len(router.chats)
        assert router.programs.keys() == set() if "released" in proven else {router.chats[0][0]["x-dynamo-session-id"]}


def test_nothing_is_sent_without_a_label() -> None:
    """Every chat of the checks belongs to a program that is released, because ThunderAgent would wait for it forever."""
    with routing() as router:
        climbed(Endpoint(router.url, "m", labels={"kind": "thunderagent"}), tools="none")

        assert all(body["program_id"].startswith("agentbench-probe:") for _, body in router.chats)
        assert {} == router.programs


def test_a_router_that_is_bypassed() -> None:
    """Detects calls that are not listed, answers without the requested data, and releases that are answered like chats."""
    with routing() as router:
        router.knows_sessions = False
        with pytest.raises(
            BackendError,
            match=r"^the message that a rollout has ended was answered .*; check `endpoint` and `labels`$",
        ):
            check_labels(Endpoint(router.url, "m", labels={"kind": "dynamo", "release": True}), BODY)
        router.lists = False
        with pytest.raises(BackendError, match=r"^GET .*/programs was answered 404 Not Found"):
            check_labels(Endpoint(router.url, "m", labels={"kind": "thunderagent"}), BODY)
    with small() as endpoint:
        climbed(endpoint)
        with pytest.raises(BackendError, match="lacks the data that the label requests"):
            check_labels(Endpoint(endpoint.url, "tiny", labels={"kind": "dynamo"}), BODY)
        with pytest.raises(NeverReady, match="check that calls go through the router"):
            climbed(Endpoint(endpoint.url, "tiny", labels={"kind": "dynamo"}))
