"""Proof that an endpoint answers, before any rollout is spent on it."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint

TIMEOUT = 30.0  # seconds for the list of models


def listed_models(endpoint: Endpoint) -> list[str]:
    """Names of the models an endpoint lists; raises BackendError with what was asked and what came back."""
    url = f"{endpoint.url}/models"
    hint = "is it the base URL of an OpenAI-compatible server? It usually ends in /v1"
    headers = {**endpoint.headers, **({"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {})}
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=_tls(endpoint.ca_file)))
    try:
        with opener.open(Request(url, headers=headers), timeout=TIMEOUT) as answer:
            models = [str(model["id"]) for model in json.load(answer)["data"]]
    except HTTPError as error:
        error.close()  # it holds the connection
        raise BackendError(f"GET {url} answered {error.code} {error.reason}; {hint}") from error
    except (OSError, HTTPException) as error:
        raise BackendError(f"GET {url} got no answer: {getattr(error, 'reason', error)}; {hint}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"GET {url} did not answer with a list of models ({error!r}); {hint}") from error
    if not models:
        raise BackendError(f"GET {url} lists no model")
    return models


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise BackendError(f"ca_file {ca_file} cannot be used: {error.strerror or error}") from error
