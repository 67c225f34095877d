"""A backend that already runs and speaks the OpenAI API. If calls to it fail, the session asks whether it still answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, field_validator, model_validator

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.doctor.check import Check, key_checks, reach_check, unknown
from pytest_agentbench.backends.machine.versions import told
from pytest_agentbench.backends.ready import listed_models
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.stack.spec import LABELS, LabelsField, LabelsSpec
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.config import Spec, base_url
from pytest_agentbench.lib.options import LoginUrl
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.http_messages import FRAMING, encode_headers

PATIENCE = 10.0  # seconds that a server may be away, where no budget of a connection says otherwise
PAUSE = 0.25  # seconds between two questions

SERVER = "server"


class Absence:
    """Finds out that a server is away, and waits until it is there again.

    `look` and `wait` run in different threads: attempts that fail ask for a look, and the thread that watches the backend waits.
    """

    def __init__(self, patience: float | None) -> None:
        """`patience` is in seconds; None stands for PATIENCE."""
        self.patience = PATIENCE if patience is None else patience
        self._tell: Tell | None = None  # known when the session watches
        self._looking = threading.Lock()
        self._changed = threading.Event()  # the server is away, or the session ends
        self._again = True  # whether the session lets it be away once more
        self._stopped = False

    def look(self, endpoint: Endpoint) -> str:
        """Asks the server once, unless it is known to be away; returns a sentence if it has just gone away, else an empty string.

        Before it returns, the session is told, so that no attempt begins.
        """
        with self._looking:
            if self._tell is None or self._changed.is_set() or not (why := self._unanswered(endpoint)):
                return ""
            self._again = self._tell([SERVER])
            self._changed.set()
        return f"{why}; no rollout begins until it answers, for {self.patience:g} s at most"

    def wait(self, endpoint: Endpoint, tell: Tell) -> str | None:
        """Blocks; returns why the server is given up, or None when the session ends."""
        self._tell = tell
        while not self._stopped:
            self._changed.wait()
            why = self._why_gone(endpoint)
            if why and not self._stopped:
                return why
            with self._looking:
                self._changed.clear()
                tell([])
        return None

    def stop(self) -> None:
        """Ends `wait`. May be called at any moment, also twice."""
        self._stopped = True
        self._changed.set()

    def _why_gone(self, endpoint: Endpoint) -> str:
        """Returns why a server that is away is not waited for any longer; empty once it answers, whatever it says."""
        late = time.monotonic() + self.patience
        while not self._stopped and (why := self._unanswered(endpoint)):
            if not self._again:
                return f"again and again, with no rollout that finished in between, {why}"
            if time.monotonic() >= late:
                return f"for {self.patience:g} s {why}"
            time.sleep(PAUSE)
        return ""

    def _unanswered(self, endpoint: Endpoint) -> str:
        try:
            Api(endpoint).get("/models", max(self.patience, 1.0))
        except BackendError as error:
            return str(error)
        return ""


AUTHORIZATION = "authorization"


class RateLimit(Spec):
    """How many requests a managed endpoint accepts."""

    requests_per_minute: FiniteFloat | None = Field(
        default=None, gt=0, description="Calls are sent one by one, evenly spaced, this many in a minute. Without it there is no limit."
    )


class UrlSpec(BackendSpec):
    """Anything that already runs and speaks the OpenAI API."""

    kind: Literal["url"] = Field(description="`url`: the server runs already.")
    url: str = Field(
        description="The base URL, `http://` or `https://`, which usually ends in `/v1`. With `USER:PASSWORD@` before the host, "
        "user and password are sent as a header."
    )
    api_key_env: str | None = Field(
        default=None, description="The *name* of the environment variable that holds the key. Without it, no key is sent."
    )
    ca_file: str | None = Field(
        default=None, description="A PEM file with the certificate authority of an `https` URL. The default is those of the system."
    )
    headers: dict[str, str] = Field(
        default={},
        description="Name -> value of headers that are sent with every call, in place of the agent's header of that name. "
        "For a secret there is `api_key_env`.",
    )
    metrics: list[str] = Field(
        default=[],
        description="A URL, or a list of URLs, of the server's [metrics](metrics.md#what-the-server-says) in Prometheus text, "
        "for example `http://127.0.0.1:8000/metrics`.",
    )
    rate_limit: RateLimit = Field(
        default=RateLimit(), description="`{requests_per_minute: 40}` sends calls one by one, evenly spaced. Without it there is no limit."
    )
    labels: LabelsField = Field(default=LabelsSpec(), description=LABELS)

    @model_validator(mode="before")
    @classmethod
    def _login_as_header(cls, data: Any) -> Any:
        """Moves user and password of the URL to a header, as curl does."""
        if not isinstance(data, dict) or not isinstance(data.get("url"), str):
            return data
        url, headers = LoginUrl(data["url"]), data.get("headers") or {}
        if not url.authorization or not isinstance(headers, dict):
            return {**data, "url": url}
        if data.get("api_key_env") or any(str(name).lower() == AUTHORIZATION for name in headers):
            raise ValueError("`url` contains a user or password, and api_key_env or a header `authorization` is set as well; leave one out")
        return {**data, "url": url, "headers": {**headers, AUTHORIZATION: url.authorization}}

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, _ in encode_headers(headers):
            if name in FRAMING:
                raise ValueError(f"{name.decode()!r} cannot be set: the tap writes what belongs to a connection or a single request")
        return headers

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.api_key_env and any(name.lower() == AUTHORIZATION for name in self.headers):
            raise ValueError("api_key_env and a header `authorization` are two keys; leave one out")
        return self

    @field_validator("metrics", mode="before", json_schema_input_type=str | list[str])
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("metrics")
    @classmethod
    def _are_http(cls, urls: list[str]) -> list[str]:
        return [base_url(url) for url in urls]

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        return base_url(url)

    def make(self, terms: SessionTerms) -> Url:
        return Url(self, terms.patience)

    def checks(self, *, reach: bool) -> Iterator[Check]:
        yield from key_checks(self.api_key_env)
        yield reach_check(self.url) if reach else unknown("server", f"{self.url} is not asked unless it is named")

    def standing(self) -> Endpoint:
        rate, labels = self.rate_limit.requests_per_minute, self.labels.model_dump(exclude_defaults=True)
        own = self.url, self.model or "", self.name, self._key(), self.ca_file, self.headers, rate, labels, self.api_key_env
        return Endpoint(*own, **self.beside)

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()  # a line break from a file would end up in the header
        if not key:
            raise ConfigError(f"backend {self.name!r} wants its key in the environment variable {self.api_key_env}, which is not set")
        return key


class Url(Backend):
    """Something that already runs: nothing to start or stop, but it has to answer."""

    def __init__(self, spec: UrlSpec, patience: float | None = None) -> None:
        """`patience`: seconds that it may be away in the middle of a session; None: the usual ones."""
        self.spec = spec
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description = spec.model_dump(exclude={"thresholds"}, exclude_defaults=True)
        if spec.headers:
            self.description["headers"] = sorted(spec.headers)  # their values may be secrets after all
        self._told: Json = {}  # what the server tells of itself, once it has
        self._absence = Absence(patience)
        self._endpoint: Endpoint | None = None  # once it has answered

    @property
    def identity(self) -> Json:
        """What runs there is not ours to know."""
        return {"kind": self.spec.kind, "url": self.spec.url, "model": self.spec.model, **self.spec.who_plays}

    @property
    def facts(self) -> Json:
        return {"server": self._told}

    def start(self, directory: Path) -> Endpoint:
        del directory  # it keeps its own logs
        endpoint = self.spec.standing()
        self.models = listed_models(endpoint)
        if self.spec.model and self.spec.model not in self.models:
            raise BackendError(f"{self.spec.url} does not serve {self.spec.model!r}; it lists: {', '.join(self.models)}")
        endpoint = replace(endpoint, model=self.spec.model or self.models[0])
        self._endpoint = endpoint
        daemon(self._ask, endpoint, name="versions")  # nobody waits for it
        return endpoint

    def _ask(self, endpoint: Endpoint) -> None:
        self._told = told(endpoint)

    def metrics(self) -> Sources:
        return Sources(tuple(Target("server", number, url, self.spec.ca_file) for number, url in enumerate(self.spec.metrics)))

    def look(self) -> str:
        return self._absence.look(self._endpoint) if self._endpoint else ""

    def watch(self, tell: Tell) -> str | None:
        """Waits for a server that `look` has missed."""
        assert self._endpoint is not None
        return self._absence.wait(self._endpoint, tell)

    def stop(self) -> None:
        """Nothing was started."""
        self._absence.stop()
