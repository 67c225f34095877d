"""A rollout for tests of a stack at its boot, and the check that the stack's router reads the labels of its calls.

Labels are request fields or headers that tell the router of a stack which rollout a call belongs to.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pytest_agentbench.backends.api import TIMEOUT, Api, ApiAnswer
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.routing_hints import make_labels, merged

ANSWER = 120.0  # seconds for a chat: the first one may compile kernels


class ProbeRollout:
    """A rollout for tests of a stack. Like a real rollout, its calls have labels, and the stack is told when it ends (`release`)."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.labels = make_labels(endpoint.labels)
        self.id = f"agentbench-probe:{secrets.token_hex(4)}"
        label = self.labels.label(self.id)
        self._endpoint, self._fields = endpoint, label.fields
        self._api = Api(replace(endpoint, headers={**endpoint.headers, **label.headers}))

    def chat(self, body: Json, timeout: float = TIMEOUT) -> ApiAnswer:
        return self._api.post("/chat/completions", merged(body, self._fields), timeout)

    def is_listed(self) -> bool | None:
        """Returns whether the stack's router lists this rollout, or None if routers of this kind have no list.

        Raises BackendError if the list cannot be read.
        """
        listing = self.labels.listing(self._endpoint.url)
        return None if listing is None else self.id in _object(Api(replace(self._endpoint, url=listing)).get(""), f"GET {listing}")

    def release(self, model: str) -> Json | None:
        """Tells the stack that the rollout has ended. Raises BackendError if the stack refuses that.

        Returns the answer of the stack, or None if stacks of this kind are not told.
        """
        release = self.labels.release(self._endpoint.url, model, self.id)
        if release is None:
            return None
        api = Api(replace(self._endpoint, url=release.url, headers={**self._endpoint.headers, **release.headers}))
        return _object(api.post("", release.body), f"POST {release.url}")


@contextmanager
def probe_rollout(endpoint: Endpoint) -> Iterator[ProbeRollout]:
    """Yields a test rollout. At the end of the `with` block, tells the stack that the rollout has ended."""
    probe = ProbeRollout(endpoint)
    yield probe
    probe.release(endpoint.model)


def check_labels(endpoint: Endpoint, body: Json) -> str:
    """Checks that the router of a stack reads labels, with a labelled chat and its release (the message that the rollout has ended).

    Returns `announced`, or `announced and released` if the stack takes releases. Raises BackendError if the router has ignored either.
    """
    probe = ProbeRollout(endpoint)
    answer = _object(probe.chat(body), "a call with a label")
    if not probe.labels.shows_label_read(answer):
        raise BackendError(
            "the router did not read the label (rollout) of a call; the answer lacks the data that the label requests: "
            f"{beginning(str(answer), 300)}; check that calls go through the router"
        )
    if probe.is_listed() is False:
        raise BackendError("the router does not list the rollout of a call that was labelled with it; check `endpoint` and `labels`")
    released = probe.release(endpoint.model)
    if released is None:
        return "announced"
    if probe.labels.bypassed(released) or probe.is_listed():
        given = beginning(str(released), 300)
        raise BackendError(
            f"the message that a rollout has ended was answered {given}, so it did not go through the router; check `endpoint` and `labels`"
        )
    return "announced and released"


def _object(answer: ApiAnswer, what: str) -> Json:
    content = answer.json()
    if answer.status != 200 or not isinstance(content, dict):
        raise BackendError(f"{what} was answered {answer}; the answer must be a JSON object with status 200")
    return content
