"""Failures of an endpoint that no further try changes, and those that come and go while a server boots."""

from __future__ import annotations

import socket
import ssl

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.remedies import lasts, of_key, of_tls
from pytest_agentbench.metrics.blame import PASSING
from pytest_agentbench.records import Endpoint

#: Statuses below 500 that another try may change.
_LATER = PASSING | {429}

#: A server that boots may not have its model, or a path, yet.
_UNFINISHED = frozenset({404})


class NeverReady(BackendError):
    """Waiting does not help: the endpoint says no and will go on to."""


def is_final(status: int, *, boots: bool) -> bool:
    """Whether a server would answer the same request so again. `boots`: it is being started, and may not be all there."""
    return 300 <= status < 500 and status not in _LATER and not (boots and status in _UNFINISHED)


def denied(sentence: str, status: int, endpoint: Endpoint, *, boots: bool = False, hint: str = "") -> BackendError:
    """The error for an answer of another status than 200, with what to do about a key; for other statuses that is the `hint`."""
    kind = NeverReady if is_final(status, boots=boots) else BackendError
    advice = key_advice(endpoint) if status in (401, 403) else hint
    return kind(f"{sentence}; {advice}" if advice else sentence)


def key_advice(endpoint: Endpoint) -> str:
    sent = bool(endpoint.api_key) or any(name.lower() == "authorization" for name in endpoint.headers)
    return of_key(endpoint.api_key_env, sent=sent)


def unanswered(what: str, error: BaseException, endpoint: Endpoint, host: str) -> BackendError:
    """The error for a request that was not answered at all."""
    if isinstance(error, ssl.SSLError):
        return (NeverReady if lasts(error) else BackendError)(f"{what}: {of_tls(error, host, endpoint.ca_file)}")
    if isinstance(error, UnicodeError) or (isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME):
        return NeverReady(f"{what}: there is no host {host!r}; is the URL right?")
    return BackendError(f"{what}: {error or repr(error)}")
