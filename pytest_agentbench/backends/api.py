"""A small HTTP client for requests that the session itself sends to a backend, such as readiness checks. Agents never use it."""

from __future__ import annotations

import json
import socket
import ssl
import statistics
import time
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.connection_security import lasts, of_key, of_tls
from pytest_agentbench.lib.redact import MARK, Redactor
from pytest_agentbench.metrics.blame import TRANSIENT
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.dialects.reader import error_message, is_error

#: Statuses below 500 that may change if the request is repeated.
_LATER = TRANSIENT | {429}

#: A server that is booting may not have its model, or a path, yet.
_UNFINISHED = frozenset({404})


class NeverReady(BackendError):
    """The error for a request that the endpoint will refuse however long the session waits, for example because of a wrong key."""


def is_final(status: int, *, boots: bool) -> bool:
    """Returns whether a request that got this status would get it again later.

    `boots` means that the server is still starting, so a 404 may change.
    """
    return 300 <= status < 500 and status not in _LATER and not (boots and status in _UNFINISHED)


def denied(sentence: str, status: int, endpoint: Endpoint, *, boots: bool = False, hint: str = "") -> BackendError:
    """Returns the exception for an answer with a status that is not 200. Its message is `sentence` and advice.

    The advice is about the API key if the status is 401 or 403, otherwise `hint`.
    """
    kind = NeverReady if is_final(status, boots=boots) else BackendError
    advice = key_advice(endpoint) if status in (401, 403) else hint
    return kind(f"{sentence}; {advice}" if advice else sentence)


def key_advice(endpoint: Endpoint) -> str:
    sent = bool(endpoint.api_key) or any(name.lower() == "authorization" for name in endpoint.headers)
    return of_key(endpoint.api_key_env, sent=sent)


def unanswered(what: str, error: BaseException, endpoint: Endpoint, host: str) -> BackendError:
    """Returns the exception for a request that got no answer because of `error`. Its message begins with `what`, the failed request."""
    if isinstance(error, ssl.SSLError):
        return (NeverReady if lasts(error) else BackendError)(f"{what}: {of_tls(error, host, endpoint.ca_file)}")
    if isinstance(error, UnicodeError) or (isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME):
        return NeverReady(f"{what}: the host {host!r} does not exist; check the URL")
    return BackendError(f"{what}: {error or repr(error)}")


TIMEOUT = 30.0  # seconds for an answer by default
LONGEST = 300  # characters of an answer that are quoted in a message
SHORTEST = 4  # characters of the shortest key that is redacted: a shorter one could match words


class ApiAnswer(NamedTuple):
    """An HTTP answer with any status."""

    status: int
    reason: str
    text: str
    endpoint: Endpoint

    @property
    def words(self) -> str:
        """The error message in the answer, or else the beginning of its text, in one line. API keys are redacted."""
        answer = self.json()
        text = " ".join((error_message(answer) if is_error(answer) else self.text).split())
        for secret in (self.endpoint.api_key or "", *self.endpoint.headers.values()):
            text = text.replace(secret, MARK) if len(secret) >= SHORTEST else text
        return Redactor().plain(text)[:LONGEST]

    def json(self) -> Any:
        """Returns the parsed JSON of the answer, or None if it is not JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    def __str__(self) -> str:
        words = self.words if self.status != 200 else ""
        return f"{self.status} {self.reason}{f': {words}' if words else ''}"


class Api:
    """Sends GET and POST requests to paths below the URL of an endpoint. Proxy settings of the environment are ignored."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Creates the client. Raises BackendError if the file of the endpoint's certificate authority cannot be read."""
        self.endpoint = endpoint
        self._opener = _opener(endpoint)

    def get(self, path: str, timeout: float = TIMEOUT) -> ApiAnswer:
        return self._ask(path, None, timeout)

    def post(self, path: str, body: Json, timeout: float = TIMEOUT) -> ApiAnswer:
        return self._ask(path, json.dumps(body).encode(), timeout)

    def open(self, path: str, body: Json, timeout: float) -> Any:
        """Sends a POST request and returns the open response, so that a stream can be read line by line.

        Raises OSError (HTTPError if the status is not 2xx) or HTTPException.
        """
        return self._open(path, json.dumps(body).encode(), timeout)

    def _open(self, path: str, body: bytes | None, timeout: float) -> Any:
        headers = {**self.endpoint.headers, **({"Content-Type": "application/json"} if body is not None else {})}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        return self._opener.open(Request(f"{self.endpoint.url}{path}", body, headers), timeout=timeout)

    def _ask(self, path: str, body: bytes | None, timeout: float) -> ApiAnswer:
        """Sends one request and returns the answer with any status.

        Raises BackendError if there is no answer, as NeverReady if waiting cannot change that.
        """
        try:
            with self._open(path, body, timeout) as answer:
                return ApiAnswer(answer.status, answer.reason, answer.read().decode(errors="replace"), self.endpoint)
        except HTTPError as error:
            with error:  # The error owns the connection.
                return ApiAnswer(error.code, str(error.reason), error.read().decode(errors="replace"), self.endpoint)
        except (OSError, HTTPException, UnicodeError) as error:
            what = f"{'GET' if body is None else 'POST'} {self.endpoint.url}{path} got no answer"
            reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
            raise unanswered(what, reason, self.endpoint, urlsplit(self.endpoint.url).hostname or "") from error


def _opener(endpoint: Endpoint) -> OpenerDirector:
    if not endpoint.url.startswith("https") and endpoint.ca_file is None:
        # Without certificates: loading them takes milliseconds, and a boot makes many requests.
        return build_opener(ProxyHandler({}))
    try:
        return build_opener(ProxyHandler({}), HTTPSHandler(context=ssl.create_default_context(cafile=endpoint.ca_file)))
    except OSError as error:
        raise BackendError(f"ca_file {endpoint.ca_file} cannot be used: {error.strerror or error}; it must be a PEM file") from error


CHATS, TOKENS = 3, 64  # number of chats, and output tokens of each at most
PROBE_TIMEOUT = 120.0  # seconds for a chat


class Speed(NamedTuple):
    """The measured speed of an endpoint: medians of several chats."""

    ttft_ms: float
    e2e_ms: float
    tokens_per_s: float | None  # after the first token; None if there was only one


def probe(endpoint: Endpoint) -> Speed:
    """Measures the speed of an endpoint with a few chats, one at a time. Raises BackendError if a chat returns no token."""
    firsts, wholes, rates = zip(*(_chat(endpoint, number) for number in range(CHATS)), strict=True)
    known = [rate for rate in rates if rate is not None]
    return Speed(statistics.median(firsts) * 1e3, statistics.median(wholes) * 1e3, statistics.median(known) if known else None)


def _chat(endpoint: Endpoint, number: int) -> tuple[float, float, float | None]:
    """Streams one chat. Returns the seconds to the first token and to the end, and the tokens per second after the first."""
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": f"Count from {number} to one hundred, in words."}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    api, tokens, events = Api(endpoint), 0, []
    started = time.monotonic()
    try:
        with api.open("/chat/completions", body, PROBE_TIMEOUT) as answer:
            for line in answer:
                event = _event(line)
                tokens = (event.get("usage") or {}).get("completion_tokens") or tokens
                events += [time.monotonic()] * _has_text(event)
    except (OSError, HTTPException) as error:
        raise BackendError(f"a streaming chat failed: {error}") from error
    ended = time.monotonic()
    if not events:
        raise BackendError("a streaming chat returned no token; try the same request with curl, and look into the log of the server")
    spent, count = events[-1] - events[0], (tokens or len(events)) - 1
    return events[0] - started, ended - started, count / spent if count and spent else None


def _event(line: bytes) -> Json:
    data = line.removeprefix(b"data:").strip()
    try:
        event = json.loads(data) if line.startswith(b"data:") and data != b"[DONE]" else {}
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _has_text(event: Json) -> bool:
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return any(delta.get(name) for delta in deltas for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
