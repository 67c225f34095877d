"""Test sessions at the boot of a stack, with a real router before built-in engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.labels_spec import LabelsSpec
from pytest_agentbench.backends.session_probe import SessionProbe, probe_sessions
from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.backends.url import Url, UrlSpec
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint
from tests.engine_router import EngineRouter
from tests.engines import engine
from tests.web import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SESSION: dict[str, Any] = {"kind": "session", "headers": ["x-session-id"]}
BODY = {"model": "embedded", "max_tokens": 1}

MakeRouter = Callable[..., str]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    with engine(first, policy="lexical", model="embedded") as one, engine(second, policy="lexical", model="embedded") as two:
        yield [one, two]


@pytest.fixture
def router(engines: list[str]) -> Iterator[MakeRouter]:
    """A function that starts a router before the engines with this policy, and returns its base URL."""
    opened = []

    def start(policy: str, field: str = "user") -> str:
        opened.append(serving(EngineRouter(0, policy, engines, field)))
        return f"http://127.0.0.1:{opened[-1].__enter__().server_port}/v1"

    yield start
    for each in opened:
        each.__exit__(None, None, None)


def targets(engines: list[str]) -> tuple[Target, ...]:
    return tuple(Target("engine", number, f"{url}/metrics") for number, url in enumerate(engines))


@pytest.mark.parametrize(
    ("policy", "probe"),
    [
        ("session", SessionProbe(6, 6, 0, {"engine[0]": 9, "engine[1]": 9}, 2)),
        ("round-robin", SessionProbe(6, 0, 0, {"engine[0]": 9, "engine[1]": 9}, 2)),
        ("first", SessionProbe(6, 6, 0, {"engine[0]": 18, "engine[1]": 0}, 2)),
    ],
)
def test_sessions_by_the_counters_of_engines(router: MakeRouter, engines: list[str], policy: str, probe: SessionProbe) -> None:
    """The engines' counters say which engine answered each call, also if one engine answered none."""
    assert probe == probe_sessions(Endpoint(router(policy), "embedded", labels=SESSION), BODY, targets(engines))


def test_one_of_several_engines_that_name_themselves(engines: list[str], tmp_path: Path) -> None:
    """If answers name their engine, the metrics still show that there are others, which got no call. Servers for prefill do not count."""
    with engine(tmp_path, policy="lexical", model="embedded", worker_id="e") as url:
        several, single = (
            probe_sessions(Endpoint(f"{url}/v1", "embedded", labels=SESSION), BODY, watched)
            for watched in (
                targets([url, *engines]),
                (*targets([url]), *(Target("prefill", n, f"{each}/metrics") for n, each in enumerate(engines))),
            )
        )

    assert ("e", {"e": 18}, False) == (several.alone, several.calls, several.is_good)
    assert ("", {"e": 18}, True) == (single.alone, single.calls, single.is_good)


@pytest.mark.parametrize("labels", [{"kind": "session", "headers": ["x-other"]}, {"kind": "session", "fields": ["session_id"]}])
def test_an_id_that_the_router_does_not_read(router: MakeRouter, engines: list[str], labels: Any) -> None:
    """If the router reads the id at another place, sessions do not stay."""
    assert 0 == probe_sessions(Endpoint(router("session"), "embedded", labels=labels), BODY, targets(engines)).stayed


def test_an_id_in_a_nested_field(router: MakeRouter, engines: list[str]) -> None:
    """A dotted field reaches the router as nested objects."""
    path = "vllm_xargs.agentic_context.program_id"
    endpoint = Endpoint(router("session", field=path), "embedded", labels={"kind": "session", "fields": [path]})

    assert 6 == probe_sessions(endpoint, BODY, targets(engines)).stayed


def backend(url: str, engines: list[str], **labels: Any) -> Url:
    metrics = [f"{engine}/metrics" for engine in engines]
    return Url(UrlSpec(kind="url", name="mine", url=url, labels=LabelsSpec(**{**SESSION, **labels}), metrics=metrics))


def test_a_server_that_runs(router: MakeRouter, engines: list[str]) -> None:
    """The description of a server that already runs has the result of the test sessions."""
    sticky = backend(router("session"), engines, sticky="required")
    sticky.start(Path())
    sticky.stop()

    assert {"sessions": 6, "stayed": 6, "unknown": 0, "calls": {"server[0]": 9, "server[1]": 9}, "replicas": 2} == sticky.description[
        "sessions"
    ]


@pytest.mark.parametrize(
    ("policy", "counted", "sentence"),
    [
        (
            "round-robin",
            True,
            (
                "labels: `sticky` is `required`, but 0 of 6 sessions stayed on one engine (calls per engine: server[0] 9, server[1] 9); "
                "choose a policy of the router that keeps sessions, and check that it reads the id from the `headers` or `fields`, "
                "or remove `sticky`"
            ),
        ),
        (
            "session",
            False,
            (
                "labels: `sticky` is `required`, but it is unknown whether sessions stayed on one engine; give the engines `metrics`, "
                "whose counters say which one answered, or use engines that write `nvext.worker_id`, or remove `sticky`"
            ),
        ),
    ],
)
def test_sticky_is_required(router: MakeRouter, engines: list[str], policy: str, counted: bool, sentence: str) -> None:
    """`sticky: required` refuses a stack whose sessions change engines, and one whose engines are not known."""
    with pytest.raises(BackendError, match=re.escape(sentence)):
        backend(router(policy), engines if counted else [], sticky="required").start(Path())


def test_texts() -> None:
    """The sentence names the calls of each engine, sessions that are unknown, and an engine that answered all calls."""
    assert "6 of 6 sessions stayed on one engine (calls per engine: a 9, b 9)" == SessionProbe(6, 6, 0, {"b": 9, "a": 9}).text()
    assert "4 of 6 sessions stayed on one engine, 2 unknown (calls per engine: a 12)" == SessionProbe(6, 4, 2, {"a": 12}).text()
    assert "; all calls went to a: an id that is not read, or a policy that needs load)" in SessionProbe(6, 6, 0, {"a": 18, "b": 0}).text()
    assert ("6 of 6", "6 of 6 (all on a)") == tuple(SessionProbe(6, 6, 0, calls).short_text() for calls in ({"a": 18}, {"a": 18, "b": 0}))
    assert (True, False, False) == tuple(
        SessionProbe(6, stayed, 0, calls).is_good for stayed, calls in ((6, {"a": 18}), (6, {"a": 18, "b": 0}), (5, {"a": 18}))
    )
