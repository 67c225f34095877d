"""Readiness checks of an endpoint before the first rollout: port, models, workers, chat, tool call, labels, and sessions."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pytest_agentbench.backends.api import Api, ApiAnswer, NeverReady, denied, is_final, unanswered
from pytest_agentbench.backends.labels_spec import probes_sessions
from pytest_agentbench.backends.probe_rollout import ANSWER, ProbeRollout, check_labels, probe_rollout
from pytest_agentbench.backends.session_probe import REQUIRED, SessionProbe, probe_sessions
from pytest_agentbench.backends.stack.spec import ReadySpec
from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json

PAUSE = 0.2  # seconds before a readiness check is repeated
LABEL_TRIES = 10
STICKY_TRIES = 3  # A router may learn of its workers only after it answers, and then distribute sessions anew.
STICKY_PAUSE = 1.0  # seconds between two of them
TOOL_TRIES = 3  # A model may answer with text instead of a tool call.
RETURN = 5.0  # seconds that missing workers get to come back between two blocks of rollouts
CONTEXT_TIMEOUT = 5.0  # seconds for the list of models while a rollout waits

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
    """The result of a readiness check that has passed."""

    name: str
    detail: str
    seconds: float  # duration of the check, including waiting


def listed_models(endpoint: Endpoint, *, boots: bool = False) -> list[str]:
    """Returns the names of the models that an endpoint lists.

    Raises BackendError with the request and the answer if it lists none, as NeverReady if waiting cannot change that. `boots` means that
    the server is still starting, so it may list models later.
    """
    url = f"{endpoint.url}/models"
    api = Api(endpoint)
    try:
        answer = api.get("/models")
    except NeverReady:
        raise
    except BackendError as error:
        raise BackendError(f"{error}; {base_hint(endpoint.url)}") from error
    if answer.status != 200:
        raise denied(f"GET {url} answered {answer}", answer.status, endpoint, boots=boots, hint=base_hint(endpoint.url))
    try:
        models = [str(model["id"]) for model in json.loads(answer.text)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        no_list = f"GET {url} answered {answer}, but with no list of models: {answer.words or 'nothing'}"
        raise (BackendError if boots else NeverReady)(f"{no_list}; {base_hint(endpoint.url)}") from error
    if not models:
        raise BackendError(f"GET {url} lists no model; see the log of the server")
    return models


def listed_context(endpoint: Endpoint) -> int | None:
    """Returns the context length of a model that the server reports at `/models`, or None if it reports none or does not answer.

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


def waiting_for(check: str, problem: str) -> str:
    """Returns a text for users about a readiness check that a boot waits for, and why it has not passed yet, if that is known."""
    return f"readiness check `{check}`{f': {problem}' if problem else ''}"


class ReadinessChecks:
    """The readiness checks of one endpoint. Each is repeated until it passes, until `deadline`, or until `alive` raises.

    `run_checks` runs all of them. `run_silent_checks` runs those that send no chat.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        spec: ReadySpec,
        deadline: float = math.inf,
        alive: Callable[[], None] = lambda: None,
        on_wait: Callable[[str, str], None] = lambda _name, _problem: None,
        *,
        boots: bool = False,
        targets: Sequence[Target] = (),
    ) -> None:
        """Creates the checks. Nothing is requested yet.

        Args:
            endpoint: Its model may be empty; then the first listed model is used.
            spec: Which checks are made, and how.
            deadline: Latest time for all checks, as time.monotonic().
            alive: Raises an error if the server has died.
            on_wait: Called with the name of each check before it runs, and with its name and the problem after each failed attempt.
            boots: Whether the server is still starting, so that a missing path or model may yet appear.
            targets: The metrics of the stack's engines, whose counters say which engine answered a call.
        """
        self.boots = boots
        self.endpoint, self.spec, self.deadline, self.alive, self.on_wait = endpoint, spec, deadline, alive, on_wait
        self.model = endpoint.model
        self.workers: dict[str, int] = {}  # Dynamo: worker type -> number of workers, after the check `workers`
        self.sessions: SessionProbe | None = None  # where the calls of test sessions went, after the check `sessions`
        self._targets = targets
        self._max_workers: Mapping[str, int] = {}  # Worker type -> most workers that Dynamo may list
        self._probe = ProbeRollout(endpoint)

    @property
    def answering(self) -> Endpoint:
        """The endpoint with the name of its model. The name is known after the check `models` has passed."""
        return replace(self.endpoint, model=self.model)

    def run_checks(self) -> Iterator[PassedCheck]:
        """Runs all checks and yields the result of each. Raises BackendError for the first one that fails."""
        checks = {**self._silent(), "chat": self._chat}
        if self.spec.tools != "none":
            checks["tools"] = self._tools
        labels = self.endpoint.labels
        if labels.get("kind", "none") not in ("none", "session"):
            checks["labels"] = self._labels
        if probes_sessions(labels):
            checks["sessions"] = self.check_sessions
        yield from self._run(checks)
        self._probe.release(self.model)

    def run_silent_checks(self, workers: Mapping[str, int]) -> None:
        """Runs only the checks that send no chat request.

        They are made of servers that already run, and during a run, when a chat would distort the server's metrics. `workers` are the
        numbers of workers that Dynamo listed when the stack was ready. While Dynamo lists more, it still sends calls to a worker that has
        died. Raises BackendError for the first check that fails.
        """
        self._max_workers = workers
        for _ in self._run(self._silent()):
            pass

    def _silent(self) -> dict[str, Callable[[], str]]:
        return {"port": self._port, "models": self._models, **({"workers": self._workers} if self.spec.workers else {})}

    def _run(self, checks: Mapping[str, Callable[[], str]]) -> Iterator[PassedCheck]:
        for name, check in checks.items():
            started = time.monotonic()
            self.on_wait(name, "")
            detail = self._retry(name, check)
            yield PassedCheck(name, detail, time.monotonic() - started)

    def _retry(self, name: str, check: Callable[[], str]) -> str:
        while True:
            self.alive()
            try:
                return check()
            except NeverReady:
                raise
            except BackendError as error:
                self.alive()
                if time.monotonic() + PAUSE > self.deadline:
                    raise BackendError(f"not ready in time, check `{name}` failed: {error}") from error
                self.on_wait(name, str(error))
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
        """Checks that Dynamo lists as many workers of each type as the YAML requires, and none that has died.

        Dynamo lists a model before all its workers are up, and a worker for seconds after its death.
        """
        self.workers = counts = count_workers(self.answering, self.spec.workers)
        if dead := [f"{counts.get(kind, 0)} {kind}, not {most}" for kind, most in self._max_workers.items() if counts.get(kind, 0) > most]:
            raise BackendError(f"/models/{self.model}/ready still counts a worker that has died: {', '.join(dead)}")
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())

    def _chat(self) -> str:
        """Checks that as many one-token chats in a row succeed as `ready.in_a_row` says."""
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
        raise NeverReady(f"asked {TOOL_TRIES} times to call a tool, the model answered with text; {HINT_TOOLS}")

    def _labels(self) -> str:
        """Checks that the router reads labels. This is repeated, because a router may learn of its workers only after they answer."""
        for _ in range(LABEL_TRIES):
            try:
                return check_labels(self.answering, self._body(CHAT))
            except BackendError as error:
                why = str(error)
                time.sleep(PAUSE)
        raise NeverReady(why)

    def check_sessions(self) -> str:
        """Makes the calls of test sessions, and returns on how many engines they were answered, as `sessions` has it.

        With `sticky: required`, raises NeverReady unless the calls of each session stayed on one engine.
        """
        is_required = self.endpoint.labels.get("sticky") == REQUIRED
        for left in reversed(range(STICKY_TRIES if is_required else 1)):
            self.sessions = probe = probe_sessions(self.answering, self._body({"max_tokens": 1}), self._targets)
            if probe.all_stayed or not is_required:
                break
            if not left:
                raise NeverReady(f"labels: `sticky` is `{REQUIRED}`, but {probe.text()}; {probe.advice()}, or remove `sticky`")
            time.sleep(STICKY_PAUSE)
        return probe.text()

    def _body(self, fields: Json) -> Json:
        return {"model": self.model, "temperature": 0, **fields, **self.spec.chat}

    def _post(self, fields: Json) -> ApiAnswer:
        answer = self._probe.chat(self._body(fields), min(ANSWER, max(1.0, self.deadline - time.monotonic())))
        if answer.status in (401, 403):
            raise denied(f"a chat was answered {answer}", answer.status, self.endpoint)
        return answer


def count_workers(endpoint: Endpoint, least: Mapping[str, int]) -> dict[str, int]:
    """Returns Dynamo's worker type -> number of workers that are ready. Raises BackendError if there are fewer than `least` of a type."""
    answer = Api(endpoint).get(f"/models/{endpoint.model}/ready")
    counts = _workers(answer.json())
    missing = [f"{counts.get(kind, 0)} of {number} {kind}" for kind, number in least.items() if counts.get(kind, 0) < number]
    if answer.status != 200 or missing:
        workers = f"; ready workers: {', '.join(missing)}" if missing else ""
        raise BackendError(f"/models/{endpoint.model}/ready answered {answer}{workers}")
    return counts


def missing_workers(endpoint: Endpoint, least: Mapping[str, int]) -> str:
    """Counts the workers of a Dynamo that was ready before. Returns a sentence if some are missing, else an empty string.

    Workers that are missing get RETURN seconds to come back. Without `least` (worker type -> least number), nothing is counted.
    """
    end = time.monotonic() + RETURN
    while least:
        try:
            count_workers(endpoint, least)
            break
        except BackendError as error:
            if time.monotonic() > end:
                return f"workers that were ready at the boot are missing, for {RETURN:g} s now: {error}"
        time.sleep(PAUSE)
    return ""


def warm_up(endpoint: Endpoint, requests: int, spec: ReadySpec) -> None:
    """Warms up a server with this many requests at once, before anything is measured. Raises BackendError if one of them fails."""
    if not requests:
        return
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 16, **spec.chat}
    with probe_rollout(endpoint) as probe, ThreadPoolExecutor(requests, "agentbench-warm-up") as threads:
        answers = list(threads.map(lambda _: probe.chat(body, ANSWER), range(requests)))
    if failed := [answer for answer in answers if answer.status != 200]:
        raise BackendError(f"{len(failed)} of {requests} requests of the warm-up failed; the first was answered {failed[0]}")


def base_hint(url: str) -> str:
    """Returns what may be wrong with a URL at which no server lists its models."""
    for end in ("/chat/completions", "/completions", "/responses", "/messages", "/models"):
        if url.endswith(end):
            return f"the base URL is the part before {end}: {url.removesuffix(end)}"
    if url.endswith("/v1/v1"):
        return f"/v1 is in the URL twice; try {url.removesuffix('/v1')}"
    if not url.endswith("/v1"):
        return f"is it the base URL of an OpenAI-compatible server? It usually ends in /v1: try {url}/v1"
    return "is it the base URL of an OpenAI-compatible server? It usually ends in /v1"


HINT_TOOLS = "check that the engine has a tool parser; for a stack that calls no tools set `ready: {tools: none}`"


def _choice(answer: ApiAnswer) -> Any:
    """Returns the first choice of a chat answer. Raises BackendError if it has none."""
    content = answer.json()
    try:
        if answer.status == 200:
            choice = content["choices"][0]
            choice["message"].get("content")
            return choice
    except (LookupError, TypeError, AttributeError):
        pass
    raise BackendError(f"a chat was answered {answer.status} {answer.reason}, without `choices[0].message`: {answer.words}")


def _workers(answer: Any) -> dict[str, int]:
    """Returns worker type -> number of workers from Dynamo's answer, over all namespaces. Returns nothing if it cannot be read."""
    counts: dict[str, int] = {}
    try:
        for namespace in answer["namespaces"].values():
            for kind, facts in namespace["worker_types"].items():
                counts[kind] = counts.get(kind, 0) + int(facts["workers"])
    except (LookupError, TypeError, AttributeError, ValueError):
        return {}
    return counts
