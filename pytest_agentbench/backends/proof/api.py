"""An endpoint asked by hand, a request at a time: proofs of readiness, probes, releases. Agents never go this way."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from pytest_agentbench.backends.proof.denials import unanswered
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.redact import MARK, Redactor
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.dialects.reader import error_message, is_error

TIMEOUT = 30.0  # seconds for an answer, unless the caller says otherwise
LONGEST = 300  # letters of an answer in a sentence
SHORTEST = 4  # letters of a key that is looked for in it: a shorter one would blank out words


class ApiAnswer(NamedTuple):
    """An answer of any status."""

    status: int
    reason: str
    text: str
    endpoint: Endpoint

    @property
    def words(self) -> str:
        """What the server said, in one line: the sentence of an error, or how the answer begins. Without the key, should it be in it."""
        answer = self.json()
        text = " ".join((error_message(answer) if is_error(answer) else self.text).split())
        for secret in (self.endpoint.api_key or "", *self.endpoint.headers.values()):
            text = text.replace(secret, MARK) if len(secret) >= SHORTEST else text
        return Redactor().plain(text)[:LONGEST]

    def json(self) -> Any:
        """The answer as JSON; None when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    def __str__(self) -> str:
        words = self.words if self.status != 200 else ""
        return f"{self.status} {self.reason}{f': {words}' if words else ''}"


class Api:
    """GET and POST below the root of a server, without a proxy."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises BackendError when the endpoint's certificate authority cannot be read."""
        self.endpoint = endpoint
        self._opener = _opener(endpoint)

    def get(self, path: str, timeout: float = TIMEOUT) -> ApiAnswer:
        return self._ask(path, None, timeout)

    def post(self, path: str, body: Json, timeout: float = TIMEOUT) -> ApiAnswer:
        return self._ask(path, json.dumps(body).encode(), timeout)

    def open(self, path: str, body: Json, timeout: float) -> Any:
        """An answer to be read line by line; raises OSError (HTTPError for one that is not 2xx) or HTTPException."""
        return self._open(path, json.dumps(body).encode(), timeout)

    def _open(self, path: str, body: bytes | None, timeout: float) -> Any:
        headers = {**self.endpoint.headers, **({"Content-Type": "application/json"} if body is not None else {})}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        return self._opener.open(Request(f"{self.endpoint.url}{path}", body, headers), timeout=timeout)

    def _ask(self, path: str, body: bytes | None, timeout: float) -> ApiAnswer:
        """Raises BackendError when there is no answer at all, NeverReady when there will be none."""
        try:
            with self._open(path, body, timeout) as answer:
                return ApiAnswer(answer.status, answer.reason, answer.read().decode(errors="replace"), self.endpoint)
        except HTTPError as error:
            with error:  # it holds the connection
                return ApiAnswer(error.code, str(error.reason), error.read().decode(errors="replace"), self.endpoint)
        except (OSError, HTTPException, UnicodeError) as error:
            what = f"{'GET' if body is None else 'POST'} {self.endpoint.url}{path} got no answer"
            reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
            raise unanswered(what, reason, self.endpoint, urlsplit(self.endpoint.url).hostname or "") from error


def _opener(endpoint: Endpoint) -> OpenerDirector:
    if not endpoint.url.startswith("https") and endpoint.ca_file is None:  # certificates take milliseconds to load, and boots ask often
        return build_opener(ProxyHandler({}))
    try:
        return build_opener(ProxyHandler({}), HTTPSHandler(context=ssl.create_default_context(cafile=endpoint.ca_file)))
    except OSError as error:
        raise BackendError(f"ca_file {endpoint.ca_file} cannot be used: {error.strerror or error}") from error
