"""Where a backend answers, and who may call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.records.common import Json


@dataclass(frozen=True)
class Endpoint:
    """Where a backend answers."""

    url: str  # OpenAI base URL, ends before /chat/completions, e.g. http://127.0.0.1:8000/v1
    model: str  # name to send in requests
    backend: str = ""  # name of the backend, e.g. embedded
    api_key: str | None = field(default=None, repr=False)  # sent as a bearer token, never stored
    ca_file: str | None = None  # certificate authority of an https URL, PEM
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with every call
    requests_per_minute: float | None = None  # that it takes; None: as many as come
    labels: Json = field(default_factory=dict)  # how rollouts are announced, as `labels` of a backend YAML has it; empty: not at all
    api_key_env: str | None = None  # the environment variable that `api_key` is from
    roles: Mapping[str, Json] = field(default_factory=dict)  # name -> player, as `endpoint` of Access; they override a suite's
    prices: Json | None = None  # of its tokens
    request_fields: Mapping[str, str | None] = field(default_factory=dict)  # field -> name that the model accepts, or None
    context_length: int | None = None  # tokens of prompt and answer together


@dataclass(frozen=True)
class Access:
    """How somebody is to call a model through the tap, under a token of his own."""

    upgrade: bool | None = None  # whether calls that do not stream travel as streams; None: as each of them asks
    keep: bool = False  # whether the records of the calls keep what the model said
    role: str = ""  # in whose name the calls are made; empty: the agent's own
    model: str = ""  # name in requests; empty: the model that plays the role
    calls: int | None = None  # so many calls are relayed, later ones are refused; None: all
    # url (none: the backend under test), model, api_key (name of an environment variable), prices, limits, request_fields,
    # context_length; None: no suite names it
    endpoint: Json | None = None
    account: str = ""  # of its rollout, which has `limits` for all that is called under it; empty: none
    limits: Json = field(default_factory=dict)  # of `calls`, `tokens` and `cost`
