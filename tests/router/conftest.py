"""Fixtures: the router as a process of its own, before engines of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.router.decision_log import LoggedDecision, read_decisions


class RouterProcess(NamedTuple):
    """A router that serves."""

    url: str
    log: Path  # its decisions
    client: httpx.Client

    def decisions(self) -> list[LoggedDecision]:
        return [*read_decisions(self.log)]

    def chat(self, text: str = "Hello", **headers: str) -> httpx.Response:
        """Returns the answer to a chat. Underscores in names of headers become dashes."""
        body = {"model": "embedded-lexical", "messages": [{"role": "user", "content": text}]}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"{self.url}/v1/chat/completions", json=body, headers=named)


StartRouter = Callable[..., RouterProcess]


@pytest.fixture
def start_router(tmp_path: Path) -> Iterator[StartRouter]:
    """Starts a router before engines: `start_router([url, ...], key=value)`. It ends with the test."""
    children: list[Child] = []
    client = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))

    def start(engines: list[str], **config: Any) -> RouterProcess:
        log = tmp_path / f"decisions-{len(children)}.jsonl"
        settings = {"engines": engines, "decisions": str(log), "metrics_interval": 0.1, **config}
        children.append(Child("pytest_agentbench.router", settings, tmp_path / f"router-{len(children)}.log"))
        return RouterProcess(f"http://127.0.0.1:{children[-1].ready(Listening).port}", log, client)

    yield start
    client.close()
    for child in children:
        child.stop()
    logs = [file.read_text() for file in tmp_path.glob("router-*.log")]

    assert [] == [log for log in logs if "Traceback" in log]
