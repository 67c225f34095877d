"""Proof that an endpoint answers, before any rollout is spent on it: a ladder from an open port to calls with a rollout's labels."""

from __future__ import annotations

import json
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pytest_agentbench.backends.api import TIMEOUT, Api, ApiAnswer, NeverReady, denied, is_final, unanswered
from pytest_agentbench.backends.stack.spec import ReadySpec
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
    if not probe.labels.shows_label_read(answer):
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


PAUSE = 0.2  # seconds between two tries of a rung
LABEL_TRIES = 10
TOOL_TRIES = 3  # a model may answer in words once
CONTEXT_TIMEOUT = 5.0  # seconds for a list of models that a rollout waits for
ANSWER = 120.0  # seconds that a chat may take: the first one may compile kernels

CHAT: Json = {"max_tokens": 1, "messages": [{"role": "user", "content": "Say hello."}]}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(frozen=True)
class PassedCheck:
    """One thing that is proven."""

    name: str
    detail: str
    seconds: float  # that it took, waiting included


def listed_models(endpoint: Endpoint, *, boots: bool = False) -> list[str]:
    """Names of the models an endpoint lists; raises BackendError with what was asked and what came back.

    That is NeverReady where the same would come again; a server that `boots` may still change its mind about what it has.
    """
    url = f"{endpoint.url}/models"
    api = Api(endpoint)
    try:
        answer = api.get("/models")
    except NeverReady:
        raise
    except BackendError as error:
        raise BackendError(f"{error}; {HINT_BASE}") from error
    if answer.status != 200:
        raise denied(f"GET {url} answered {answer}", answer.status, endpoint, boots=boots, hint=HINT_BASE)
    try:
        models = [str(model["id"]) for model in json.loads(answer.text)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        no_list = f"GET {url} answered {answer}, but with no list of models: {answer.words or 'nothing'}"
        raise (BackendError if boots else NeverReady)(f"{no_list}; {HINT_BASE}") from error
    if not models:
        raise BackendError(f"GET {url} lists no model")
    return models


def listed_context(endpoint: Endpoint) -> int | None:
    """Returns the context length of a model according to `/models`, or None if the server does not tell it or does not answer.

    vLLM and SGLang call it `max_model_len`, other servers `context_length`.
    """
    try:
        listed = Api(endpoint).get("/models", timeout=CONTEXT_TIMEOUT).json()
    except BackendError:
        return None
    models = listed.get("data") if isinstance(listed, dict) else listed
    own = [each for each in models if isinstance(each, dict) and each.get("id") == endpoint.model] if isinstance(models, list) else []
    lengths = (each.get(name) for each in own for name in ("max_model_len", "context_length"))
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


class ReadinessChecks:
    """Every rung is tried again and again until it holds, until `deadline` (time.monotonic()), or until `alive` raises."""

    def __init__(
        self,
        endpoint: Endpoint,
        spec: ReadySpec,
        deadline: float = math.inf,
        alive: Callable[[], None] = lambda: None,
        on_wait: Callable[[str], None] = lambda _: None,
        *,
        boots: bool = False,
    ) -> None:
        """`on_wait` is told which rung is waited for; `endpoint.model` may be empty: then it is the first one listed.

        `boots`: the server is being started, so that a path or a model that it does not have may come yet.
        """
        self.boots = boots
        self.endpoint, self.spec, self.deadline, self.alive, self.on_wait = endpoint, spec, deadline, alive, on_wait
        self.model = endpoint.model
        self.workers: dict[str, int] = {}  # Dynamo: worker type -> how many it knows, as soon as that has been asked
        self._most: Mapping[str, int] = {}  # and how many it may know
        self._program = ProbeRollout(endpoint)

    @property
    def answering(self) -> Endpoint:
        """The endpoint with the model that it serves, once that is known."""
        return replace(self.endpoint, model=self.model)

    def run_checks(self) -> Iterator[PassedCheck]:
        """The rungs one by one as they hold; raises BackendError with the one that does not."""
        checks = {**self._silent(), "chat": self._chat}
        if self.spec.tools != "none":
            checks["tools"] = self._tools
        if self.endpoint.labels.get("kind", "none") != "none":
            checks["labels"] = self._labels
        yield from self._hold(checks)
        self._program.release(self.model)

    def look(self, workers: Mapping[str, int]) -> None:
        """Climbs as far as one comes without a chat, which somebody would find in the counts; raises BackendError as `run_checks` does.

        `workers` are those that Dynamo knew before one of them died. As long as it knows more, it sends calls to the dead one as well.
        """
        self._most = workers
        for _ in self._hold(self._silent()):
            pass

    def _silent(self) -> dict[str, Callable[[], str]]:
        return {"port": self._port, "models": self._models, **({"workers": self._workers} if self.spec.workers else {})}

    def _hold(self, checks: Mapping[str, Callable[[], str]]) -> Iterator[PassedCheck]:
        for name, check in checks.items():
            started = time.monotonic()
            self.on_wait(name)
            detail = self._until_it_holds(name, check)
            yield PassedCheck(name, detail, time.monotonic() - started)

    def _until_it_holds(self, name: str, check: Callable[[], str]) -> str:
        while True:
            self.alive()
            try:
                return check()
            except NeverReady:
                raise
            except BackendError as error:
                self.alive()
                if time.monotonic() + PAUSE > self.deadline:
                    raise BackendError(f"not ready in time, `{name}` does not hold: {error}") from error
            time.sleep(PAUSE)

    def _port(self) -> str:
        parts = urlsplit(self.endpoint.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((host, port), timeout=5).close()
        except (socket.gaierror, UnicodeError) as error:
            raise unanswered(f"no connection to {host}:{port}", error, self.endpoint, host) from error
        except OSError as error:
            raise BackendError(f"nothing listens on {host}:{port} ({error.strerror or error})") from error
        return f"{host}:{port}"

    def _models(self) -> str:
        models = listed_models(self.endpoint, boots=self.boots)
        self.model = self.endpoint.model or models[0]
        if self.model not in models:
            missing = f"{self.endpoint.url} does not serve {self.model!r}; it lists: {', '.join(models)}"
            raise (BackendError if self.boots else NeverReady)(missing)
        return ", ".join(models)

    def _workers(self) -> str:
        """Dynamo lists a model before its workers are all there, and a worker for seconds after its death."""
        answer = Api(self.endpoint).get(f"/models/{self.model}/ready")
        self.workers = there = _workers(answer.json())
        missing = [f"{there.get(kind, 0)} of {least} {kind}" for kind, least in self.spec.workers.items() if there.get(kind, 0) < least]
        if answer.status != 200 or missing:
            raise BackendError(f"/models/{self.model}/ready answered {answer}; workers: {', '.join(missing)}")
        if dead := [f"{there.get(kind, 0)} {kind}, not {most}" for kind, most in self._most.items() if there.get(kind, 0) > most]:
            raise BackendError(f"/models/{self.model}/ready still counts one that has died: {', '.join(dead)}")
        return ", ".join(f"{count} {kind}" for kind, count in there.items())

    def _chat(self) -> str:
        """As many one-token chats as have to go well in a row."""
        for _ in range(self.spec.in_a_row):
            answer = self._post(CHAT)
            if answer.status != 200:
                raise denied(f"a chat was answered {answer}", answer.status, self.endpoint, boots=self.boots)
            _choice(answer)
        return f"{self.spec.in_a_row} in a row"

    def _tools(self) -> str:
        question = [{"role": "user", "content": "What is the current weather in the city of Paris? Use the tool."}]
        fields = {"max_tokens": 512, "messages": question, "tools": [TOOL], "tool_choice": self.spec.tools}
        for _ in range(TOOL_TRIES):
            answer = self._post(fields)
            if is_final(answer.status, boots=self.boots):
                raise NeverReady(f"a chat with tools (tool_choice {self.spec.tools}) was answered {answer}; {HINT_TOOLS}")
            calls = _choice(answer)["message"].get("tool_calls") or []
            if calls:
                return str(calls[0].get("function", {}).get("name"))
        raise NeverReady(f"asked {TOOL_TRIES} times to call a tool, the model answered in words; {HINT_TOOLS}")

    def _labels(self) -> str:
        """A router may learn of its workers a moment after they answer, so it gets some tries."""
        for _ in range(LABEL_TRIES):
            try:
                return prove(self.answering, self._body(CHAT))
            except BackendError as error:
                why = str(error)
                time.sleep(PAUSE)
        raise NeverReady(why)

    def _body(self, fields: Json) -> Json:
        return {"model": self.model, "temperature": 0, **fields, **self.spec.chat}

    def _post(self, fields: Json) -> ApiAnswer:
        answer = self._program.chat(self._body(fields), min(ANSWER, max(1.0, self.deadline - time.monotonic())))
        if answer.status in (401, 403):
            raise denied(f"a chat was answered {answer}", answer.status, self.endpoint)
        return answer


def warm_up(endpoint: Endpoint, requests: int, spec: ReadySpec) -> None:
    """Makes requests at once, which nobody counts; raises BackendError when one of them fails."""
    if not requests:
        return
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 16, **spec.chat}
    with program(endpoint) as ours, ThreadPoolExecutor(requests, "agentbench-warm-up") as threads:
        answers = list(threads.map(lambda _: ours.chat(body, ANSWER), range(requests)))
    if failed := [answer for answer in answers if answer.status != 200]:
        raise BackendError(f"{len(failed)} of {requests} requests of the warm-up failed; the first was answered {failed[0]}")


HINT_BASE = "is it the base URL of an OpenAI-compatible server? It usually ends in /v1"
HINT_TOOLS = "does the engine have its tool parser? `ready: {tools: none}` is for a stack that calls none"


def _choice(answer: ApiAnswer) -> Any:
    """The first choice of a chat; raises BackendError with what came instead."""
    content = answer.json()
    try:
        if answer.status == 200:
            choice = content["choices"][0]
            choice["message"].get("content")
            return choice
    except (LookupError, TypeError, AttributeError):
        pass
    raise BackendError(f"a chat was answered {answer.status} {answer.reason}: {answer.words}")


def _workers(said: Any) -> dict[str, int]:
    """Worker type -> how many, over all namespaces of Dynamo's answer."""
    counts: dict[str, int] = {}
    try:
        for namespace in said["namespaces"].values():
            for kind, facts in namespace["worker_types"].items():
                counts[kind] = counts.get(kind, 0) + int(facts["workers"])
    except (LookupError, TypeError, AttributeError, ValueError):
        return {}
    return counts
