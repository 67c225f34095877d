"""The key `labels` of a backend YAML: how a stack is told which rollout a call belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pytest_agentbench.backends.hints_spec import HintsSpec
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.config import matching
from pytest_agentbench.records import Json
from pytest_agentbench.tap.hint_table import read_table
from pytest_agentbench.tap.http_messages import FRAMING, encode_headers

#: Fields that are part of every request, so that a router could not get an id in them.
TAKEN = frozenset(
    {"model", "messages", "prompt", "input", "stream", "stream_options", "tools", "tool_choice", "max_tokens", "temperature", "n"}
)

#: Kind of labels -> the hints that it can send.
HINTS = {"dynamo": tuple(HintsSpec.model_fields), "session": ("osl", "total_requests", "iat", "prefix")}

FieldPath = Annotated[
    str, matching(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*$", "a field of the request body, with dots between nested names")
]


def _are_free_headers(names: list[str]) -> list[str]:
    for name, _ in encode_headers(dict.fromkeys(names, "")):
        if name in FRAMING or name in (b"authorization", b"content-type"):
            raise ValueError(f"{name.decode()!r} cannot carry the id of a session; name the header that the router reads")
    return names


def _are_free_fields(paths: list[str]) -> list[str]:
    if taken := [path for path in paths if path.partition(".")[0] in TAKEN]:
        raise ValueError(f"{taken[0]!r} is a field that requests have anyway, so it cannot carry the id of a session")
    for path in paths:
        if within := [other for other in paths if other.startswith(f"{path}.")]:
            raise ValueError(f"{path!r} and {within[0]!r} cannot both be set, because the second is inside the first; remove one")
    return paths


class LabelsSpec(HintsSpec):
    """The key `labels` of a backend: which router is told the rollout of each call, and what else it is told."""

    kind: Literal["none", "thunderagent", "dynamo", "session"] = Field(
        default="none",
        description="The router that gets the labels of rollouts: `thunderagent`, `dynamo`, `session` for any router that reads the id of "
        "a session from headers or fields, or `none`.",
    )
    headers: Annotated[list[str], AfterValidator(_are_free_headers)] = Field(
        default=[], description="For `session`: the headers of each call that get the rollout's id, for example `[x-session-id]`."
    )
    fields: Annotated[list[FieldPath], AfterValidator(_are_free_fields)] = Field(
        default=[],
        description="For `session`: the fields of each request body that get the rollout's id, for example `[user]`. Dots separate the "
        "names of nested objects, as in `vllm_xargs.agentic_context.program_id`.",
    )
    sticky: Literal["required"] | None = Field(
        default=None,
        description="With `required`, a boot fails unless the calls of each test session "
        "[stay on one engine](labels.md#do-sessions-stay-on-one-engine). For `session` and Dynamo.",
    )
    roles: dict[str, HintsSpec] = Field(
        default={},
        description="Role -> [hints](hints.md#priorities) for its calls, in place of those of the backend. For example "
        "`{judge: {priority: -1}}`.",
    )
    table: str | None = Field(
        default=None,
        description="For Dynamo and `session`: a file of [learnt hints](hints.md#learnt-hints), relative to the YAML. They override "
        "`osl`, `total_requests` and `iat`.",
    )
    trace: str | None = Field(
        default=None,
        description="The file that Dynamo's frontend writes request traces to (`DYN_REQUEST_TRACE_FILE_PATH`), or ThunderAgent's "
        "`step_profiles.csv`. Without it, server-side data come only from the answers.",
    )
    job: bool = Field(
        default=False,
        description="For ThunderAgent: with `true`, calls also have the rollout as a job, for an engine with Continuum's scheduler.",
    )
    release: bool = Field(
        default=False,
        description="For Dynamo: with `true`, its ThunderAgent router is notified when a rollout ends. ThunderAgent itself always is.",
    )
    processor: bool = Field(
        default=False,
        description="For Dynamo: with `true`, a component between frontend and workers names the worker of each call in "
        "`nvext.engine_data`, because `nvext.worker_id` then names the component. "
        "[`dynamo-thompson`](thompson-router.md#within-nvidia-dynamo) has one.",
    )

    @model_validator(mode="after")
    def _names_a_place(self) -> Self:
        named = bool(self.headers or self.fields)
        if self.kind == "session" and not named:
            raise ValueError("kind 'session' needs `headers` or `fields` that get the id, for example `headers: [x-session-id]`")
        if self.kind != "session" and named:
            raise ValueError(f"`headers` and `fields` are keys of `kind: session`, not of {self.kind!r}; remove them, or change `kind`")
        if self.sticky and self.kind not in ("session", "dynamo"):
            raise ValueError(f"`sticky` is a key of the kinds `session` and `dynamo`, not of {self.kind!r}; remove it, or change `kind`")
        return self

    @model_validator(mode="after")
    def _has_hints_of_its_kind(self) -> Self:
        for owner, spec in (("", self), *((f"roles.{role}: ", spec) for role, spec in self.roles.items())):
            given = [name for name in HintsSpec.model_fields if getattr(spec, name) is not None]
            if misplaced := [name for name in given if name not in HINTS.get(self.kind, ())]:
                kinds = " and ".join(kind for kind, names in HINTS.items() if misplaced[0] in names)
                raise ValueError(f"{owner}`{misplaced[0]}` is a hint for {kinds}, not for {self.kind!r}; remove it, or change `kind`")
        if self.table is not None:
            if self.kind not in HINTS:
                raise ValueError(f"`table` is a key of the kinds {' and '.join(HINTS)}, not of {self.kind!r}; remove it, or change `kind`")
            try:
                read_table(Path(self.table))
            except ConfigError as error:
                raise ValueError(f"table: {error}") from error
        return self

    def of_endpoint(self) -> Json:
        """Returns the keys that differ from the defaults, in the form for the tap: with the rows of the table in place of its file."""
        keys: Json = self.model_dump(exclude_defaults=True)
        return keys if self.table is None else {**keys, "table": codec.plain(read_table(Path(self.table)))}


def probes_sessions(labels: Json) -> bool:
    """Returns whether test sessions at the boot show if the router keeps the calls of a session on one engine."""
    return labels.get("kind") == "session" or labels.get("sticky") is not None


def with_table_beside(keys: Json, file: Path) -> Json:
    """Returns the keys of a backend YAML in which the path of a table of hints, relative to the YAML, leads there from anywhere."""
    labels = keys.get("labels")
    if not isinstance(labels, dict) or not isinstance(labels.get("table"), str):
        return keys
    return {**keys, "labels": {**labels, "table": str(file.parent.absolute() / labels["table"])}}


def _kind_alone(labels: Any) -> Any:
    return {"kind": labels} if isinstance(labels, str) else labels


#: `labels: dynamo` is short for `labels: {kind: dynamo}`.
LabelsField = Annotated[
    LabelsSpec, BeforeValidator(_kind_alone, json_schema_input_type=Literal["none", "thunderagent", "dynamo"] | LabelsSpec)
]

LABELS = (
    "How [rollouts are announced to the stack](labels.md): `none`, `thunderagent`, `dynamo`, or a "
    "mapping with further keys, such as `{kind: session, headers: [x-session-id]}`. The default is `none`."
)
