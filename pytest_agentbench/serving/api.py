"""An endpoint asked by hand, a request at a time: proofs of readiness, probes, releases. Agents never go this way."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json

TIMEOUT = 30.0  # seconds for an answer, unless the caller says otherwise


class Said(NamedTuple):
    """An answer of any status."""

    status: int
    reason: str
    text: str

    def json(self) -> Any:
        """The answer as JSON; None when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        return f"{self.status} {self.reason}{f': {text[:300]}' if text and self.status != 200 else ''}"


class Api:
    """GET and POST below the root of a server, without a proxy."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises BackendError when the endpoint's certificate authority cannot be read."""
        self.endpoint = endpoint
        self._opener = _opener(endpoint)

    def get(self, path: str, timeout: float = TIMEOUT) -> Said:
        return self._ask(path, None, timeout)

    def post(self, path: str, body: Json, timeout: float = TIMEOUT) -> Said:
        return self._ask(path, json.dumps(body).encode(), timeout)

    def open(self, path: str, body: Json, timeout: float) -> Any:
        """An answer to be read line by line; raises OSError (HTTPError for one that is not 2xx) or HTTPException."""
        return self._open(path, json.dumps(body).encode(), timeout)

    def _open(self, path: str, body: bytes | None, timeout: float) -> Any:
        headers = {**self.endpoint.headers, **({"Content-Type": "application/json"} if body is not None else {})}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        return self._opener.open(Request(f"{self.endpoint.url}{path}", body, headers), timeout=timeout)

    def _ask(self, path: str, body: bytes | None, timeout: float) -> Said:
        """Raises BackendError when there is no answer at all."""
        try:
            with self._open(path, body, timeout) as answer:
                return Said(answer.status, answer.reason, answer.read().decode(errors="replace"))
        except HTTPError as error:
            with error:  # it holds the connection
                return Said(error.code, str(error.reason), error.read().decode(errors="replace"))
        except (OSError, HTTPException) as error:
            method = "GET" if body is None else "POST"
            raise BackendError(
                f"{method} {self.endpoint.url}{path} got no answer: {getattr(error, 'reason', error) or repr(error)}"
            ) from error


def _opener(endpoint: Endpoint) -> OpenerDirector:
    if not endpoint.url.startswith("https") and endpoint.ca_file is None:  # certificates take milliseconds to load, and boots ask often
        return build_opener(ProxyHandler({}))
    try:
        return build_opener(ProxyHandler({}), HTTPSHandler(context=ssl.create_default_context(cafile=endpoint.ca_file)))
    except OSError as error:
        raise BackendError(f"ca_file {endpoint.ca_file} cannot be used: {error.strerror or error}") from error
