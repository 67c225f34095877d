"""Roles: the endpoints that a rollout uses besides the agent's own model, as they are written in suite.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, base_url, load_yaml, matching, validate
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.metrics.suite_metrics import AGENT
from pytest_agentbench.records import JUDGE, Json


class LimitsSpec(Spec):
    """The calls, tokens and costs that a rollout may use before it ends with the status `limit`."""

    calls: int | None = Field(default=None, ge=1, description="The maximum number of LLM calls. The default is no limit.")
    tokens: int | None = Field(
        default=None,
        ge=1,
        description="The maximum number of prompt and output tokens together, as usage names them; a call without usage counts none. "
        "The default is no limit.",
    )
    cost: FiniteFloat | None = Field(
        default=None,
        gt=0,
        description="The maximum cost, by the [prices](roles.md#prices) of the endpoints that are asked, each in its own currency. "
        "An endpoint without prices is an error. The default is no limit.",
    )


#: Request field -> the name that a model accepts, or None if it refuses the field.
RequestFields = dict[str, str | None]


class ModelSpec(Spec):
    """Keys of a suite.yaml that describe a model: the request fields that it accepts, and its context length."""

    request_fields: RequestFields | None = Field(
        default=None,
        description="Request field -> the [name that the model accepts](roles.md#request-fields) for it, or null if it refuses the field. "
        "Without it, no field is changed.",
    )
    context_length: int | None = Field(
        default=None,
        ge=1,
        description="The model's [context length](roles.md#context-length): tokens of prompt and answer together. "
        "Without it, the server is asked.",
    )


class RoleSpec(ModelSpec):
    """The endpoint that plays a role. Without `url`, it is the backend under test."""

    url: Annotated[str, AfterValidator(base_url)] | None = Field(
        default=None, description="The OpenAI base URL of another endpoint. Without it, the backend under test plays the role."
    )
    model: str | None = Field(
        default=None,
        description="The model name in requests. An endpoint of its own needs one; the default is the model of the backend under test.",
    )
    api_key: str | None = Field(
        default=None, description="The name of the environment variable that holds the key of the endpoint. It goes only with `url`."
    )
    prices: Prices | None = Field(default=None, description="[What tokens cost](roles.md#prices) at the endpoint. It goes only with `url`.")
    limits: LimitsSpec = Field(
        default=LimitsSpec(), description="[What the role may use](roles.md#limits) in a rollout: `calls`, `tokens`, `cost`."
    )

    @model_validator(mode="after")
    def _of_an_endpoint(self) -> RoleSpec:
        if self.is_elsewhere and self.model is None:
            raise ValueError("a role with a 'url' needs a 'model', too; add it")
        misplaced = [name for name in ("api_key", "prices") if not self.is_elsewhere and getattr(self, name) is not None]
        if misplaced:
            raise ValueError(
                f"{misplaced[0]!r} needs a 'url'; add the 'url' of the endpoint, or remove {misplaced[0]!r}, because without 'url' "
                "the backend under test plays the role"
            )
        return self

    @property
    def is_elsewhere(self) -> bool:
        """Whether an endpoint other than the backend under test plays the role."""
        return self.url is not None


Role = TypeVar("Role", bound=RoleSpec)


def own_names(roles: dict[str, Role]) -> dict[str, Role]:
    """Returns the roles unchanged. Raises ValueError if one has a reserved name."""
    if JUDGE in roles:
        raise ValueError("'judge' is not one of the roles; write the judge under the key 'judge', next to 'roles'")
    if AGENT in roles:
        raise ValueError(f"{AGENT!r} is the name of the agent itself in reports; give the role another name")
    return roles


#: Name -> role. Names are short words, because they are part of the rollout ids that a stack gets.
RoleName = Annotated[str, matching(r"^[a-z][a-z0-9_]{0,29}$", "up to 30 lowercase letters, digits and `_`, with a letter first")]
RoleSpecs = Annotated[dict[RoleName, RoleSpec], AfterValidator(own_names)]


class RoleFile(Spec):
    """A YAML file with roles and a judge. A suite.yaml uses it by `roles: FILE`."""

    roles: RoleSpecs = Field(description="Name -> role, as in `suite.yaml`.")
    judge: RoleSpec | None = Field(default=None, description="The judge, as in `suite.yaml`. Without it, that of `suite.yaml` holds.")


def with_role_file(suite: Json, file: Path) -> Json:
    """Returns the keys of a suite.yaml. If `roles` is the name of a role file, the roles and the judge in that file replace it.

    Raises ConfigError if the role file is wrong, or if both files contain a judge.
    """
    if not isinstance(suite.get("roles"), str):
        return suite
    path = file.parent / suite["roles"]
    spec = validate(RoleFile, load_yaml(path), str(path))
    roles = roles_as_json(spec.roles)
    if spec.judge is None:
        return {**suite, "roles": roles}
    if suite.get("judge") is not None:
        raise ConfigError(f"{file}: `judge` is also in {path.name}; remove one of the two")
    return {**suite, "roles": roles, JUDGE: roles_as_json({}, spec.judge)[JUDGE]}


def roles_as_json(roles: Mapping[str, RoleSpec], judge: RoleSpec | None = None) -> dict[str, Json]:
    """Returns role -> its settings as JSON, without defaults. The judge is one of the roles."""
    every = {**roles, **({JUDGE: judge} if judge else {})}
    return {name: role.model_dump(mode="json", exclude_none=True, exclude_defaults=True) for name, role in every.items()}
