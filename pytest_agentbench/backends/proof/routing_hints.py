"""Calls of our own that look like a rollout's, and the proof that they pass a router that reads labels."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pytest_agentbench.backends.proof.api import TIMEOUT, Api, ApiAnswer
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.routing_hints import make_labels, merged


class ProbeRollout:
    """A rollout that is none: announced like one with every call, and released."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.labels = make_labels(endpoint.labels)
        self.id = f"agentbench-probe:{secrets.token_hex(4)}"
        label = self.labels.label(self.id)
        self._endpoint, self._fields = endpoint, label.fields
        self._api = Api(replace(endpoint, headers={**endpoint.headers, **label.headers}))

    def chat(self, body: Json, timeout: float = TIMEOUT) -> ApiAnswer:
        return self._api.post("/chat/completions", merged(body, self._fields), timeout)

    def is_listed(self) -> bool | None:
        """Whether the stack knows it; None where it does not tell whom it knows. Raises BackendError when it should and does not."""
        listing = self.labels.listing(self._endpoint.url)
        return None if listing is None else self.id in _object(Api(replace(self._endpoint, url=listing)).get(""), f"GET {listing}")

    def release(self, model: str) -> Json | None:
        """What the stack says to its end; None where it is not told of it. Raises BackendError when it refuses."""
        release = self.labels.release(self._endpoint.url, model, self.id)
        if release is None:
            return None
        api = Api(replace(self._endpoint, url=release.url, headers={**self._endpoint.headers, **release.headers}))
        return _object(api.post("", release.body), f"POST {release.url}")


@contextmanager
def program(endpoint: Endpoint) -> Iterator[ProbeRollout]:
    """One that is released when the block is over."""
    made = ProbeRollout(endpoint)
    yield made
    made.release(endpoint.model)


def prove(endpoint: Endpoint, body: Json) -> str:
    """Announces a chat and releases it; raises BackendError with what shows that nobody read its label."""
    probe = ProbeRollout(endpoint)
    answer = _object(probe.chat(body), "a call with a label")
    if not probe.labels.told(answer):
        raise BackendError(
            f"a call with a label was answered without what the label asks for: {beginning(str(answer), 300)}; is the router there?"
        )
    if probe.is_listed() is False:
        raise BackendError("a call with a label is in no list of the stack: it did not pass the router")
    released = probe.release(endpoint.model)
    if released is None:
        return "announced"
    if probe.labels.bypassed(released) or probe.is_listed():
        raise BackendError(f"a release was answered {beginning(str(released), 300)}: it did not pass the router")
    return "announced and released"


def _object(answer: ApiAnswer, what: str) -> Json:
    content = answer.json()
    if answer.status != 200 or not isinstance(content, dict):
        raise BackendError(f"{what} was answered {answer}")
    return content
