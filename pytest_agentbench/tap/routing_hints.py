"""Labels that show a stack which rollout a call belongs to, and requests that release a finished rollout. Nothing is sent here."""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import ClassVar

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.metrics.call_hints import MOST_TURNS
from pytest_agentbench.records import Json, RolloutKey, ToldHints
from pytest_agentbench.tap.agent_hints import NO_HINTS_OF_ROLES, Hints, HintsOfRoles, hints_of

LONGEST = 120  # characters of an id
RUN = 40  # most characters of an id for the run
ROLE = 30  # most characters of an id for the role
FOREIGN = re.compile(r"[^A-Za-z0-9._:-]")

#: Header with the place of a call in a recording: suite, scenario, variant, trial and role, as a JSON list.
PLACE = "x-agentbench-place"

SESSION = "x-dynamo-session-id"
FINAL = "x-dynamo-session-final"

#: Fields that Dynamo adds to an answer on request.
EXTRA_FIELDS = ("worker_id", "timing")

#: Field that a component between Dynamo's frontend and its workers adds. It names the worker, while `worker_id` names the component.
PROCESSOR_FIELD = "engine_data"


#: Routes of the APIs in which servers accept unknown fields. Servers of Anthropic Messages reject them.
OPENAI = ("/chat/completions", "/completions", "/responses")
CHAT = ("/chat/completions",)


@dataclass(frozen=True)
class CallLabel:
    """The label of the calls that have the same number in their session, in place of the headers and fields of `Label`."""

    headers: Mapping[str, str]
    fields: Json
    hints: ToldHints | None = None


@dataclass(frozen=True)
class Label:
    """Headers and fields that are added to each call of a rollout, except those that the agent sent itself."""

    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Json = field(default_factory=dict)  # fields of the request body; only for calls of `routes`
    routes: tuple[str, ...] = OPENAI  # routes of the APIs whose calls get the fields; calls of the others get only the headers
    turns: tuple[CallLabel, ...] = ()  # labels of the first call, the second and so on; the last one is that of all later calls
    usage_once: bool = False  # whether streams must report usage only at their end, because the router uses the first report

    def of_call(self, turn: int) -> CallLabel:
        """Returns the label of call number `turn` of the session, counted from 1."""
        return self.turns[min(turn, len(self.turns)) - 1] if self.turns else CallLabel(self.headers, self.fields)


NO_LABEL = Label()


@dataclass(frozen=True)
class Release:
    """A POST request that tells a stack that a rollout is over."""

    url: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)


class Labels:
    """Makes the labels (marks on calls that name their rollout) and releases (messages that a rollout has ended) for one kind of stack.

    This class is for stacks without labels; subclasses override its methods.
    """

    def label(self, id: str) -> Label:
        """Returns the label (headers and fields added to requests) for LLM calls of the rollout with this id."""
        del id
        return NO_LABEL

    def of_rollout(self, id: str, key: RolloutKey, role: str) -> Label:
        """Returns the label (headers and fields added to requests) for the LLM calls that a role makes in a rollout.

        `id` is the name under which the stack knows this rollout and role.
        """
        del key, role
        return self.label(id)

    def release(self, url: str, model: str, id: str) -> Release | None:
        """Returns the request that tells the stack at this base URL that a rollout has ended, or None if there is none."""
        del url, model, id
        return None

    def bypassed(self, answer: Json) -> bool:
        """Returns whether the answer to a release (the message that a rollout has ended) shows that no router handled the message."""
        del answer
        return False

    confirms_releases: ClassVar[bool] = False  # whether the answer to a release says if the stack knew the rollout

    def confirms(self, answer: Json) -> bool:
        """Returns whether the stack's answer to a release (the message that a rollout has ended) says that it knew the rollout."""
        return self.confirms_releases and bool(answer.get("released"))

    @property
    def trace(self) -> Path | None:
        """The file in which the stack records each request with its rollout and timing, or None."""
        return None

    def shows_label_read(self, answer: Json) -> bool:
        """Returns whether the answer to an LLM call shows that the stack has read the rollout's label (fields added to the request)."""
        del answer
        return True

    def listing(self, url: str) -> str | None:
        """Returns the URL of a JSON object whose keys are the ids of the rollouts that the stack knows, or None."""
        del url
        return None


class HintedLabels(Labels, ABC):
    """Makes labels with hints: facts about a call that a router uses besides the session. Each role may have hints of its own."""

    hints: HintsOfRoles

    def label(self, id: str) -> Label:
        """Returns the label of test calls at a boot. They ask for no second request, which an engine might count during the session."""
        return self.hinted(id, replace(self.hints.own, speculative_prefill=None), id)

    def of_rollout(self, id: str, key: RolloutKey, role: str) -> Label:
        hints = self.hints.of(role)
        prefix = prefix_id(hints.prefix, id, key, role)
        label = self.hinted(id, hints, prefix)
        learnt = [(row, hints.learnt(row)) for row in self.hints.rows(role)]
        told = [(each, each.expected(row.turn, row.tokens_p50, row.remaining)) for row, each in learnt] or _static(hints)
        labels = ((self.hinted(id, each, prefix), expected) for each, expected in told)
        return replace(label, turns=tuple(CallLabel(each.headers, each.fields, expected) for each, expected in labels))

    @abstractmethod
    def hinted(self, id: str, hints: Hints, prefix: str) -> Label:
        """Returns the label (headers and fields added to requests) with these hints. `prefix` is the id of their prefix."""


@dataclass(frozen=True)
class ThunderAgentLabels(Labels):
    """Labels for ThunderAgent, in which a rollout is a program. Its router has only Chat Completions, and forwards no headers.

    At the first usage report of a stream, the router takes the answer as ended and the reported tokens as the size of the program.
    """

    confirms_releases = True
    profiled: str = ""  # path of the router's step_profiles.csv
    job: bool = False  # whether an engine has Continuum's scheduler; which call is a job's last is not known, so none is marked

    def label(self, id: str) -> Label:
        job = {"job_id": id, "is_last_step": False} if self.job else {}
        return Label(fields={"program_id": id, **job}, routes=CHAT, usage_once=True)

    def release(self, url: str, model: str, id: str) -> Release:
        del model
        return Release(f"{root(url)}/programs/release", {"program_id": id})

    @property
    def trace(self) -> Path | None:
        return Path(self.profiled) if self.profiled else None

    def listing(self, url: str) -> str:
        return f"{root(url)}/programs"


@dataclass(frozen=True)
class DynamoLabels(HintedLabels):
    """Labels for Dynamo, in which a rollout is a session. A header names the session, and the body requests EXTRA_FIELDS.

    An additional LLM call with a header tells Dynamo that a session has ended.
    """

    hints: HintsOfRoles = NO_HINTS_OF_ROLES
    traced: str = ""  # path of the frontend's request traces
    sends_final: bool = False  # whether the router handles the end of a session; others would answer that call with the model
    has_processor: bool = False  # whether a component between frontend and workers adds PROCESSOR_FIELD

    def hinted(self, id: str, hints: Hints, prefix: str) -> Label:
        extra = [*EXTRA_FIELDS, *([PROCESSOR_FIELD] if self.has_processor else [])]
        return Label({SESSION: id}, {"nvext": {"extra_fields": extra, **hints.as_fields(prefix)}})

    def release(self, url: str, model: str, id: str) -> Release | None:
        if not self.sends_final:
            return None
        body = {"model": model, "messages": [{"role": "user", "content": "The end."}], "max_tokens": 1}
        return Release(f"{url}/chat/completions", body, {SESSION: id, FINAL: "true"})

    def bypassed(self, answer: Json) -> bool:
        return bool(answer.get("choices"))

    @property
    def trace(self) -> Path | None:
        return Path(self.traced) if self.traced else None

    def shows_label_read(self, answer: Json) -> bool:
        return "worker_id" in (answer.get("nvext") or {})


@dataclass(frozen=True)
class SessionLabels(HintedLabels):
    """Labels for any router that keeps the calls of a session on one engine. The session's id is in headers or fields of each call.

    Such a router is not told when a session ends, and its answers do not show whether it has read the id.
    """

    headers: tuple[str, ...]
    paths: tuple[str, ...]  # fields of the request body; dots separate the names of nested objects
    hints: HintsOfRoles = NO_HINTS_OF_ROLES

    def hinted(self, id: str, hints: Hints, prefix: str) -> Label:
        fields: Json = reduce(merged, (nested(path, id) for path in self.paths), {})
        return Label({**hints.as_headers(prefix), **dict.fromkeys(self.headers, id)}, fields)


def worker_in(nvext: Json) -> object:
    """Returns what `nvext` of an answer says about its worker, or None if it says nothing."""
    processed = nvext.get(PROCESSOR_FIELD)
    named = processed.get("worker_id") if isinstance(processed, dict) else None
    return nvext.get("worker_id") if named is None else named


def nested(path: str, value: object) -> Json:
    """Returns an object with a value at a path of names: `a.b` becomes {"a": {"b": value}}."""
    first, dot, rest = path.partition(".")
    return {first: nested(rest, value) if dot else value}


@dataclass(frozen=True)
class RecordingLabels(Labels):
    """Labels for the server of a recording: a header of each call names the rollout, and the role that makes the call."""

    def of_rollout(self, id: str, key: RolloutKey, role: str) -> Label:
        del id
        return Label({PLACE: json.dumps([*key, role])})


def none(_: Json) -> Labels:
    return Labels()


def recording(_: Json) -> Labels:
    return RecordingLabels()


def thunderagent(options: Json) -> Labels:
    return ThunderAgentLabels(str(options.get("trace") or ""), bool(options.get("job")))


def dynamo(options: Json) -> Labels:
    return DynamoLabels(hints_of(options), str(options.get("trace") or ""), bool(options.get("release")), bool(options.get("processor")))


def session(options: Json) -> Labels:
    return SessionLabels(tuple(options.get("headers") or ()), tuple(options.get("fields") or ()), hints_of(options))


KINDS: Mapping[str, Callable[[Json], Labels]] = {
    "none": none,
    "thunderagent": thunderagent,
    "dynamo": dynamo,
    "session": session,
    "recording": recording,
}


def make_labels(options: Json) -> Labels:
    """Makes the instance of Labels for the options under `labels` in a backend's YAML. Raises ConfigError for an unknown kind."""
    kind = str(options.get("kind", "none"))
    if kind not in KINDS:
        raise ConfigError(f"labels: {unknown_name('kind', kind, KINDS)}")
    return KINDS[kind](options)


def run_prefix(run: str) -> str:
    """Returns the prefix that the ids of all rollouts of a run share."""
    return f"{FOREIGN.sub('_', run)[-RUN:]}:"


def new_id(prefix: str, key: RolloutKey, role: str = "") -> str:
    """Returns the id of one attempt, `<run>:<suite>.<scenario>.<trial>:<8 hex>`, followed by `-<role>` if a role makes the calls.

    Characters that a stack might not accept become `_`.
    """
    end = f":{secrets.token_hex(4)}" + (f"-{FOREIGN.sub('_', role)[:ROLE]}" if role else "")
    name = FOREIGN.sub("_", f"{key.group}.{key.scenario}.{key.trial}")
    return prefix + name[: LONGEST - len(prefix) - len(end)] + end


def _static(hints: Hints) -> list[tuple[Hints, ToldHints]]:
    """Returns hints that are the same for all calls, with what they say about each. Empty if they say nothing about a call."""
    turns = range(1, min(hints.total_requests or 1, MOST_TURNS) + 1)
    return [(hints, said) for turn in turns if (said := hints.expected(turn)) is not None]


def prefix_id(template: str | None, id: str, key: RolloutKey, role: str) -> str:
    """Returns the prefix id that a template makes for the calls of a role in a rollout. Without a template, it is the session's id."""
    if template is None:
        return id
    text = template.format(session=id, suite=key.suite, scenario=key.scenario, variant=key.variant, trial=key.trial, role=role or "agent")
    return FOREIGN.sub("_", text)[-LONGEST:]


def merged(body: Json, fields: Json) -> Json:
    """Returns a request body with fields added.

    Values that the agent sent are kept: objects and lists are merged, and any other value of the agent wins. An empty text counts as
    missing, because no router could release a program with an empty name.
    """
    return {**body, **{name: value if body.get(name) in (None, "") else _merged_value(body[name], value) for name, value in fields.items()}}


def _merged_value(own: object, added: object) -> object:
    if isinstance(own, dict) and isinstance(added, dict):
        return merged(own, added)
    if isinstance(own, list) and isinstance(added, list):
        return [*own, *(value for value in added if value not in own)]
    return own


def root(url: str) -> str:
    """Returns the URL of a server without the `/v1` of its OpenAI API."""
    return url.removesuffix("/v1")
