"""The hints in the key `labels` of a backend YAML: what a router is told about a call besides its session."""

from __future__ import annotations

import re
from string import Formatter
from typing import Annotated, Any

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.lib.config import Spec

#: Parts of a template of a prefix id. Each is replaced by a text of the rollout.
PREFIX_PARTS = ("session", "suite", "scenario", "variant", "trial", "role")

#: Hint that stacks no longer take, or that has another name here -> what to do instead.
WITHDRAWN = {
    "cache_control": "Dynamo 1.6.1 refuses `nvext.cache_control` with HTTP 400, and has no hint in its place; remove it",
    "latency_sensitivity": "Dynamo 1.6.1 treats it as an older name for a place in the router's queue; use `priority`",
    "prefix_id": "Dynamo 1.6.1 refuses `agent_hints.prefix_id` with HTTP 400; use `prefix`, which is sent in a form that routers take",
    "policy_class": "Dynamo 1.6.1 refuses `agent_hints.policy_class` with HTTP 400; use `priority`",
}


def _is_template(template: str) -> str:
    try:
        parts = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"is not a template: {error}; write a literal brace twice") from error
    for name in parts:
        if name not in PREFIX_PARTS:
            raise ValueError(unknown_name("part", name, PREFIX_PARTS))
    if not re.sub(r"[{}]", "", template):
        raise ValueError("must not be empty")
    return template


class HintsSpec(Spec):
    """Hints about calls: those of a whole backend, or those of one role."""

    priority: int | None = Field(
        default=None,
        description="For Dynamo: the priority of each call in the [router's queue](hints.md#priorities), sent in `agent_hints`. "
        "Higher ones go first.",
    )
    strict_priority: NonNegativeInt | None = Field(
        default=None, description="For Dynamo: as `priority`, but the router's queue compares it first. Sent in `agent_hints`."
    )
    osl: PositiveInt | None = Field(
        default=None,
        description="The expected number of output tokens of each call. Dynamo gets it in `agent_hints`, `session` as `x-prefix-osl`.",
    )
    speculative_prefill: bool | None = Field(
        default=None,
        description="For Dynamo: with `true`, an engine gets a [second request](hints.md#speculative-prefill) after each answer to a chat, "
        "so that its cache has the beginning of the next prompt. Sent in `agent_hints`.",
    )
    total_requests: PositiveInt | None = Field(
        default=None,
        description="The expected number of calls of a session. Dynamo gets it as an annotation, `session` as `x-prefix-total-requests`.",
    )
    iat: PositiveInt | None = Field(
        default=None,
        description="The expected time from one call of a session to the next, in milliseconds. Dynamo gets it as an annotation, "
        "`session` as `x-prefix-iat`.",
    )
    prefix: Annotated[str, AfterValidator(_is_template)] | None = Field(
        default=None,
        description="The template of the prefix id, for example `{suite}.{scenario}`. Its parts are `{session}`, `{suite}`, `{scenario}`, "
        "`{variant}`, `{trial}` and `{role}`. Dynamo gets it as an annotation, `session` as `x-prefix-id`. The default is the id of the "
        "session, and is sent only beside another hint of a prefix.",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_no_withdrawn_hint(cls, keys: Any) -> Any:
        if isinstance(keys, dict) and (name := next((name for name in keys if name in WITHDRAWN), None)):
            raise ValueError(f"{name!r} is not a hint: {WITHDRAWN[name]}")
        return keys
