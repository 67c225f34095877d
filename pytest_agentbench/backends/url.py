"""A backend that already runs and has an OpenAI-compatible API. If calls to it fail, the session checks whether it still answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, PositiveInt, field_validator, model_validator

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.doctor.check import Check, key_checks, reach_check, unknown
from pytest_agentbench.backends.labels_spec import LABELS, LabelsField, LabelsSpec, probes_sessions, with_table_beside
from pytest_agentbench.backends.machine.versions import server_facts
from pytest_agentbench.backends.ready import ReadinessChecks, listed_models, missing_workers, waiting_for
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.stack.spec import WORKERS, ReadySpec
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.config import PositiveSeconds, Spec, base_url
from pytest_agentbench.lib.options import LoginUrl
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.http_messages import FRAMING, encode_headers

PATIENCE = 10.0  # seconds that a server may be unavailable by default
PAUSE = 0.25  # seconds between two requests

SERVER = "server"


class Absence:
    """Detects that a server does not answer, and waits until it answers again.

    Two threads use it. `look` is called after a failed attempt, and tells the session if the server does not answer. `wait` blocks in the
    thread that watches the backend. After `look` has found the server unavailable, `wait` polls the server until it answers again.
    """

    def __init__(self, patience: float | None) -> None:
        """Creates the object. `patience` is how many seconds the server may be unavailable. None means PATIENCE."""
        self.patience = PATIENCE if patience is None else patience
        self._tell: Tell | None = None  # Set by `wait`
        self._checking = threading.Lock()
        self._wake = threading.Event()  # Set when the server does not answer, or when the session ends
        self._may_recover = True  # Whether the session allows another wait
        self._stopped = False

    def look(self, endpoint: Endpoint) -> str:
        """Checks with one request whether the server answers, unless it is already known to be unavailable.

        Returns a sentence if the server has become unavailable, else an empty string. The session is told before this method returns, so
        that no attempt starts afterwards.
        """
        with self._checking:
            if self._tell is None or self._wake.is_set() or not (why := self._unanswered(endpoint)):
                return ""
            self._may_recover = self._tell([SERVER])
            self._wake.set()
        return f"{why}; no rollout begins until it answers, for {self.patience:g} s at most"

    def wait(self, endpoint: Endpoint, tell: Tell) -> str | None:
        """Waits until `look` finds the server unavailable, and then until it answers again, any number of times.

        Returns the reason if the server does not recover in time, or None when the session ends.
        """
        self._tell = tell
        while not self._stopped:
            self._wake.wait()
            why = self._wait_for_answer(endpoint)
            if why and not self._stopped:
                return why
            with self._checking:
                self._wake.clear()
                tell([])
        return None

    def stop(self) -> None:
        """Ends `wait`. May be called at any time, and more than once."""
        self._stopped = True
        self._wake.set()

    def _wait_for_answer(self, endpoint: Endpoint) -> str:
        """Waits until the server answers, with any status, and returns an empty string. Returns the reason if it gives up."""
        late = time.monotonic() + self.patience
        while not self._stopped and (why := self._unanswered(endpoint)):
            if not self._may_recover:
                return f"repeatedly, with no rollout finished in between, {why}"
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
    """The rate limit of a server that already runs. The tap (the recording proxy) delays calls to keep it."""

    requests_per_minute: FiniteFloat | None = Field(
        default=None, gt=0, description="Calls per minute. They are sent one by one, evenly spaced. Without it, there is no limit."
    )


class AttachedReadySpec(Spec):
    """The key `ready` of a server that already runs: what it has to show before the first rollout."""

    timeout: PositiveSeconds = Field(
        default=600,
        description="How long the session waits until the server answers, lists the model and has its `workers`, such as `30m`; a number "
        "is in seconds.",
    )
    workers: dict[str, PositiveInt] = Field(default={}, description=WORKERS)


class UrlSpec(BackendSpec):
    """The YAML keys of `kind: url`: a server that already runs and has an OpenAI-compatible API."""

    kind: Literal["url"] = Field(description="`url`: a server that already runs.")
    url: str = Field(
        description="The base URL, `http://` or `https://`, which usually ends in `/v1`. With `USER:PASSWORD@` before the host, "
        "user and password are sent as a header."
    )
    api_key_env: str | None = Field(
        default=None, description="The *name* of the environment variable with the API key. Without it, no key is sent."
    )
    ca_file: str | None = Field(
        default=None, description="A PEM file with the certificate authority of an `https` URL. The default is the system's authorities."
    )
    headers: dict[str, str] = Field(
        default={},
        description="Name -> value of headers that are sent with every call. They replace the agent's headers of the same name. "
        "For a secret, use `api_key_env`.",
    )
    metrics: list[str] = Field(
        default=[],
        description="A URL, or a list of URLs, of the server's [metrics](metrics.md#what-the-server-says) in Prometheus text, "
        "for example `http://127.0.0.1:8000/metrics`.",
    )
    rate_limit: RateLimit = Field(
        default=RateLimit(), description="`{requests_per_minute: 40}` sends calls one by one, evenly spaced. Without it, there is no limit."
    )
    labels: LabelsField = Field(default=LabelsSpec(), description=LABELS)
    ready: AttachedReadySpec | None = Field(
        default=None,
        description="`{timeout: 30m, workers: {prefill: 4, decode: 2}}` makes the session [wait for the server](choose.md#attach). "
        "Without it, the server has to answer at once.",
    )

    @model_validator(mode="before")
    @classmethod
    def _login_as_header(cls, data: Any) -> Any:
        """Moves a user and password in `url` to an `authorization` header, as curl does."""
        if not isinstance(data, dict) or not isinstance(data.get("url"), str):
            return data
        url, headers = LoginUrl(data["url"]), data.get("headers") or {}
        if not url.authorization or not isinstance(headers, dict):
            return {**data, "url": url}
        if data.get("api_key_env") or any(str(name).lower() == AUTHORIZATION for name in headers):
            raise ValueError("`url` contains a user or password, and api_key_env or a header `authorization` is set, too; remove one")
        return {**data, "url": url, "headers": {**headers, AUTHORIZATION: url.authorization}}

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, _ in encode_headers(headers):
            if name in FRAMING:
                raise ValueError(f"{name.decode()!r} cannot be set; the tap sets headers that belong to a connection or a single request")
        return headers

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.api_key_env and any(name.lower() == AUTHORIZATION for name in self.headers):
            raise ValueError("api_key_env and a header `authorization` are both set; remove one")
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

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        return with_table_beside(data, file)

    def make(self, terms: SessionTerms) -> Url:
        return Url(self, terms.patience)

    def checks(self, *, reach: bool) -> Iterator[Check]:
        yield from key_checks(self.api_key_env)
        yield reach_check(self.url) if reach else unknown("server", f"{self.url} is only checked if the backend is named")

    @property
    def targets(self) -> tuple[Target, ...]:
        """The URLs of the server's metrics."""
        return tuple(Target("server", number, url, self.ca_file) for number, url in enumerate(self.metrics))

    def running_endpoint(self) -> Endpoint:
        rate, labels = self.rate_limit.requests_per_minute, self.labels.of_endpoint()
        own = self.url, self.model or "", self.name, self._key(), self.ca_file, self.headers, rate, labels, self.api_key_env
        return Endpoint(*own, **self.endpoint_fields)

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()  # A line break, for example from a file, must not get into the header.
        if not key:
            raise ConfigError(f"backend {self.name!r} needs its key in the environment variable {self.api_key_env}, which is not set")
        return key


class Url(Backend):
    """The backend for a server that already runs. It is not started or stopped. It has to answer at once, or within `ready.timeout`."""

    def __init__(self, spec: UrlSpec, patience: float | None = None) -> None:
        """Creates the backend. `patience` is how many seconds the server may be unavailable. None means the default."""
        self.spec = spec
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description = spec.model_dump(exclude={"thresholds", "nodes"}, exclude_defaults=True)
        if spec.headers:
            self.description["headers"] = sorted(spec.headers)  # Only the names: the values may be secrets.
        self._server_facts: Json = {}  # Version and owner that the server reports; empty until known
        self._absence = Absence(patience)
        self._endpoint: Endpoint | None = None  # Set after the server has answered
        self._stopped = threading.Event()

    @property
    def identity(self) -> Json:
        """The keys of the YAML, because the session cannot know what runs at the URL."""
        return {"kind": self.spec.kind, "url": self.spec.url, "model": self.spec.model, **self.spec.role_identity}

    @property
    def facts(self) -> Json:
        return {"server": self._server_facts}

    def start(self, directory: Path) -> Endpoint:
        del directory  # The server keeps its own logs.
        endpoint = self.spec.running_endpoint()
        if self.spec.ready is not None:
            self._wait_until_ready(endpoint, self.spec.ready)
        self.models = listed_models(endpoint)
        if self.spec.model and self.spec.model not in self.models:
            raise BackendError(f"{self.spec.url} does not serve {self.spec.model!r}; it lists: {', '.join(self.models)}")
        endpoint = replace(endpoint, model=self.spec.model or self.models[0])
        if probes_sessions(endpoint.labels):
            self._probe_sessions(endpoint)
        self._endpoint = endpoint
        daemon(self._read_server_facts, endpoint, name="versions")  # In the background: the start does not wait for it.
        return endpoint

    def _wait_until_ready(self, endpoint: Endpoint, ready: AttachedReadySpec) -> None:
        """Waits until the server answers, lists the model, and has as many workers as the YAML requires.

        Raises BackendError after `ready.timeout`, or if waiting cannot help.
        """

        def on_wait(check: str, problem: str) -> None:
            self.status = waiting_for(check, problem)

        wanted = ReadySpec(timeout=ready.timeout, workers=ready.workers)
        deadline = time.monotonic() + ready.timeout
        ReadinessChecks(endpoint, wanted, deadline, self._refuse_if_stopped, on_wait, boots=True).run_silent_checks({})

    def _probe_sessions(self, endpoint: Endpoint) -> None:
        """Makes calls of test sessions, and records how many sessions stayed on one engine. Raises BackendError if `sticky` is not met."""
        self.status = waiting_for("sessions", "")
        checks = ReadinessChecks(endpoint, ReadySpec(), alive=self._refuse_if_stopped, targets=self.spec.targets)
        checks.check_sessions()
        self.description["sessions"] = codec.plain(checks.sessions)

    def _refuse_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise BackendError("the session ended while it waited for the server")

    def _read_server_facts(self, endpoint: Endpoint) -> None:
        self._server_facts = server_facts(endpoint)

    def metrics(self) -> Sources:
        return Sources(self.spec.targets)

    def missing_workers(self, arm: str) -> str:
        del arm
        return missing_workers(self._endpoint, self.spec.ready.workers) if self._endpoint and self.spec.ready else ""

    def look(self) -> str:
        return self._absence.look(self._endpoint) if self._endpoint else ""

    def watch(self, tell: Tell) -> str | None:
        """Waits until `look` has found the server unavailable, and then until it answers again."""
        assert self._endpoint is not None
        return self._absence.wait(self._endpoint, tell)

    def stop(self) -> None:
        """Ends `watch`. The server itself is not stopped."""
        self._stopped.set()
        self._absence.stop()
