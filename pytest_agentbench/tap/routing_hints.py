"""How a stack is told which rollout a call belongs to, and that the rollout is over: what is said, not the saying of it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.records import Json, RolloutKey

LONGEST = 120  # characters of an id
RUN = 40  # of them, those that the run may have
ROLE = 30  # of them, those that a role may have
FOREIGN = re.compile(r"[^A-Za-z0-9._:-]")

SESSION = "x-dynamo-session-id"
FINAL = "x-dynamo-session-final"

#: What Dynamo tells of a call when it is asked for it.
EXTRA_FIELDS = ("worker_id", "timing")


@dataclass(frozen=True)
class Label:
    """What every call of a rollout gets, where the agent has not written it itself."""

    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Json = field(default_factory=dict)  # of a request's body, where its dialect has them among its `hint_fields`
    usage_once: bool = False  # streams have to tell their usage at their end and nowhere else: who reads it believes the first one


NO_LABEL = Label()


@dataclass(frozen=True)
class Release:
    """The POST that says that a rollout is over."""

    url: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)


class Labels:
    """Of a stack that wants to know nothing. The other kinds say more."""

    def label(self, id: str) -> Label:
        """What the calls of the rollout that the stack knows by this id get."""
        del id
        return NO_LABEL

    def release(self, url: str, model: str, id: str) -> Release | None:
        """How the stack at this base URL is told that a rollout is over; None where it is not."""
        del url, model, id
        return None

    def bypassed(self, answer: Json) -> bool:
        """Whether the answer to a release shows that nobody who knows of rollouts has seen it."""
        del answer
        return False

    confirms_releases: ClassVar[bool] = False  # whether the answer to a release says if the stack had seen the rollout

    def confirms(self, answer: Json) -> bool:
        """Whether that answer says so."""
        return self.confirms_releases and bool(answer.get("released"))

    @property
    def trace(self) -> Path | None:
        """The file that says of every request whose it was and how it went; None where there is none."""
        return None

    def shows_label_read(self, answer: Json) -> bool:
        """Whether the answer to a call with its label shows that somebody has read the label."""
        del answer
        return True

    def listing(self, url: str) -> str | None:
        """Where the stack lists the rollouts it knows, as an object by id; None where it does not."""
        del url
        return None


@dataclass(frozen=True)
class ThunderAgentLabels(Labels):
    """ThunderAgent: calls name their program. Its router has Chat Completions and no other API, and passes no header on.

    It knows how large a program is, and that its model is done, by the first usage that a stream tells.
    """

    confirms_releases = True
    profiled: str = ""  # the router's step_profiles.csv
    job: bool = False  # an engine behind it has Continuum's scheduler; that a call is a job's last one is not known when it is made

    def label(self, id: str) -> Label:
        return Label(fields={"program_id": id, **({"job_id": id, "is_last_step": False} if self.job else {})}, usage_once=True)

    def release(self, url: str, model: str, id: str) -> Release:
        del model
        return Release(f"{root(url)}/programs/release", {"program_id": id})

    @property
    def trace(self) -> Path | None:
        return Path(self.profiled) if self.profiled else None

    def listing(self, url: str) -> str:
        return f"{root(url)}/programs"


@dataclass(frozen=True)
class DynamoLabels(Labels):
    """Dynamo: calls name their session in a header, and ask for the worker and its timing. A session ends with a call of its own."""

    hints: Json = field(default_factory=dict)  # `nvext.agent_hints` of every call
    traced: str = ""  # the file of the frontend's request traces
    sends_final: bool = False  # there is a router that wants to know when a session ends; any other would answer that call like all

    def label(self, id: str) -> Label:
        nvext: Json = {"extra_fields": [*EXTRA_FIELDS], **({"agent_hints": self.hints} if self.hints else {})}
        return Label({SESSION: id}, {"nvext": nvext})

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


def none(_: Json) -> Labels:
    return Labels()


def thunderagent(options: Json) -> Labels:
    return ThunderAgentLabels(str(options.get("trace") or ""), bool(options.get("job")))


def dynamo(options: Json) -> Labels:
    hints = {name: options[name] for name in ("priority", "osl") if options.get(name) is not None}
    return DynamoLabels(hints, str(options.get("trace") or ""), bool(options.get("release")))


KINDS: Mapping[str, Callable[[Json], Labels]] = {"none": none, "thunderagent": thunderagent, "dynamo": dynamo}


def make_labels(options: Json) -> Labels:
    """The labels that a backend's YAML asks for, as its `labels` has them; none where it has none. Raises ConfigError for others."""
    kind = str(options.get("kind", "none"))
    if kind not in KINDS:
        raise ConfigError(f"labels: {unknown_name('kind', kind, KINDS)}")
    return KINDS[kind](options)


def run_prefix(run: str) -> str:
    """How the ids of all rollouts of a run begin."""
    return f"{FOREIGN.sub('_', run)[-RUN:]}:"


def new_id(prefix: str, key: RolloutKey, role: str = "") -> str:
    """`<run>:<suite>.<scenario>.<trial>:<8 hex>`: the id of one attempt, with `-<role>` behind it of a role in it.

    Characters that a stack might not take become `_`.
    """
    end = f":{secrets.token_hex(4)}" + (f"-{FOREIGN.sub('_', role)[:ROLE]}" if role else "")
    name = FOREIGN.sub("_", f"{key.group}.{key.scenario}.{key.trial}")
    return prefix + name[: LONGEST - len(prefix) - len(end)] + end


def merged(body: Json, fields: Json) -> Json:
    """A request's body with these fields added.

    What the agent wrote stays: objects and lists are merged, of all else its value counts. An empty text is none: no router could release
    a program of that name.
    """
    return {**body, **{name: value if body.get(name) in (None, "") else _merged_value(body[name], value) for name, value in fields.items()}}


def _merged_value(own: object, added: object) -> object:
    if isinstance(own, dict) and isinstance(added, dict):
        return merged(own, added)
    if isinstance(own, list) and isinstance(added, list):
        return [*own, *(value for value in added if value not in own)]
    return own


def root(url: str) -> str:
    """The address of a server, from the base URL of its OpenAI API."""
    return url.removesuffix("/v1")
