"""Who else a rollout talks to: endpoints that play a role beside the agent's own model, as suite.yaml names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, base_url, load_yaml, validate
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.metrics.roles import AGENT
from pytest_agentbench.records import JUDGE, Json


class LimitsSpec(Spec):
    """What may be spent before the work ends as `limit`."""

    calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)  # of prompts and output
    cost: FiniteFloat | None = Field(default=None, gt=0)  # by the prices of whoever is asked


#: Request field -> the name under which a model takes it; None: it does not take it.
RequestFields = dict[str, str | None]


class ModelSpec(Spec):
    """What is said of a model that a server does not say itself."""

    request_fields: RequestFields | None = None  # None: all as they are
    context_length: int | None = Field(default=None, ge=1)  # tokens of prompt and answer together; None: what the server says


class RoleSpec(ModelSpec):
    """Where a role is played. Without `url` that is the backend under test."""

    url: Annotated[str, AfterValidator(base_url)] | None = None
    model: str | None = None  # None: the backend's own
    api_key: str | None = None  # name of an environment variable
    prices: Prices | None = None
    limits: LimitsSpec = LimitsSpec()  # of each rollout

    @model_validator(mode="after")
    def _of_an_endpoint(self) -> RoleSpec:
        if self.is_elsewhere and self.model is None:
            raise ValueError("an endpoint of its own needs a model: give 'model'")
        lost = [name for name in ("api_key", "prices") if not self.is_elsewhere and getattr(self, name) is not None]
        if lost:
            raise ValueError(f"{lost[0]!r} belongs to an endpoint: give its 'url', or leave it out, for the backend under test has its own")
        return self

    @property
    def is_elsewhere(self) -> bool:
        """Whether another endpoint than the backend under test plays it."""
        return self.url is not None


Role = TypeVar("Role", bound=RoleSpec)


def own_names(roles: dict[str, Role]) -> dict[str, Role]:
    """The roles; raises ValueError for a name that is taken."""
    if JUDGE in roles:
        raise ValueError("the judge has a key of its own in suite.yaml: 'judge', beside 'roles'")
    if AGENT in roles:
        raise ValueError(f"{AGENT!r} is what reports call the agent itself; give the role another name")
    return roles


#: Name -> role; names are short words, for they are part of the ids that a stack knows rollouts by.
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,29}$")]
RoleSpecs = Annotated[dict[RoleName, RoleSpec], AfterValidator(own_names)]


class RoleFile(Spec):
    """A YAML that names who plays which role: a suite has its name in place of `roles`."""

    roles: RoleSpecs
    judge: RoleSpec | None = None


def with_role_file(suite: Json, file: Path) -> Json:
    """The keys of a suite.yaml, `file`, with the roles and the judge of the file that `roles` names, where it names one.

    Raises ConfigError with that file, and where it and the suite both name a judge.
    """
    if not isinstance(suite.get("roles"), str):
        return suite
    path = file.parent / suite["roles"]
    said = written((spec := validate(RoleFile, load_yaml(path), str(path))).roles)
    if spec.judge is None:
        return {**suite, "roles": said}
    if suite.get("judge") is not None:
        raise ConfigError(f"{file}: `judge` is named here and in {path.name}; leave one of the two out")
    return {**suite, "roles": said, JUDGE: written({}, spec.judge)[JUDGE]}


def written(roles: Mapping[str, RoleSpec], judge: RoleSpec | None = None) -> dict[str, Json]:
    """Role -> what a YAML says of it, as JSON; the judge is one of them."""
    every = {**roles, **({JUDGE: judge} if judge else {})}
    return {name: role.model_dump(mode="json", exclude_none=True, exclude_defaults=True) for name, role in every.items()}
