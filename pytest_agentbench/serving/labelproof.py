"""Proof that calls with labels go by a router that reads them: one call, announced and released like a rollout."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.serving.api import Api
from pytest_agentbench.serving.labels import Labels, merged


def prove(endpoint: Endpoint, labels: Labels, body: Json) -> str:
    """Sends a chat with a label and releases it; raises BackendError with what shows that nobody read it."""
    id = f"agentbench-probe:{secrets.token_hex(4)}"
    label, listing = labels.label(id), labels.listing(endpoint.url)
    answer = _posted(endpoint, f"{endpoint.url}/chat/completions", merged(body, label.fields.get("chat", {})), label.headers)
    if not labels.told(answer):
        raise BackendError(f"a call with a label was answered without what the label asks for: {str(answer)[:300]}; is the router there?")
    if listing is not None and id not in _got(endpoint, listing):
        raise BackendError(f"a call with a label is not listed at {listing}: it did not pass the router")
    release = labels.release(endpoint.url, endpoint.model, id)
    if release is None:
        return "announced"
    said = _posted(endpoint, release.url, release.body, release.headers)
    if labels.bypassed(said) or (listing is not None and id in _got(endpoint, listing)):
        raise BackendError(f"a release was answered {str(said)[:300]}: it did not pass the router")
    return "announced and released"


def _posted(endpoint: Endpoint, url: str, body: Json, headers: Mapping[str, str]) -> Json:
    said = Api(replace(endpoint, url=url, headers={**endpoint.headers, **headers})).post("", body)
    return _object(said.json(), f"POST {url} answered {said}", said.status)


def _got(endpoint: Endpoint, url: str) -> Json:
    said = Api(replace(endpoint, url=url)).get("")
    return _object(said.json(), f"GET {url} answered {said}", said.status)


def _object(answer: object, what: str, status: int) -> Json:
    if status != 200 or not isinstance(answer, dict):
        raise BackendError(what)
    return answer
