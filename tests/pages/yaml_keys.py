"""Tables of the keys of suite.yaml and of backends' YAMLs, from the models. `tests.generated` writes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pytest_agentbench.agents.command import Command
from pytest_agentbench.agents.orchestrator import Orchestrator
from pytest_agentbench.agents.react import React
from pytest_agentbench.agents.run import TruncationRetry
from pytest_agentbench.agents.self_evaluating import SelfEvaluating, SelfEvaluatingWithFeedback
from pytest_agentbench.agents.terminal import Terminal
from pytest_agentbench.agents.tool_calling import ToolCalling
from pytest_agentbench.backends.embedded import EmbeddedSpec
from pytest_agentbench.backends.hints_spec import HintsSpec
from pytest_agentbench.backends.recorded import RecordedSpec
from pytest_agentbench.backends.spec import BackendKeys
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.stack.placement_spec import ManifestSpec, SlurmPlacement
from pytest_agentbench.backends.stack.spec import ContainerSpec, ReadySpec, ServiceSpec
from pytest_agentbench.backends.url import AttachedReadySpec, UrlSpec
from pytest_agentbench.launchers.kubernetes import KubernetesNodes
from pytest_agentbench.launchers.ray import RayNodes
from pytest_agentbench.launchers.slurm import SlurmNodes
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.optimize.space import ParameterSpec, SpaceSpec
from pytest_agentbench.retriever.config import EmbeddingsSpec, TavilySpec
from pytest_agentbench.router.config import RouterConfig
from pytest_agentbench.router.constants import PRESETS, Constants
from pytest_agentbench.schemas.yaml_files import BESIDE, FILLED_IN, agents, options_of
from pytest_agentbench.suites.roles import LimitsSpec, RoleSpec
from pytest_agentbench.suites.spec import AnswerSpec, DatasetSpec, SuiteSpec
from pytest_agentbench.tools.mcp import McpTools
from tests.pages.markdown import table_row

DRAFT = "https://json-schema.org/draft/2020-12/schema"

#: Maps a key to the model whose keys are in the same table, such as `dataset.file`.
FLAT: Mapping[str, type] = {"dataset": DatasetSpec, "truncation_retry": TruncationRetry, "embeddings": EmbeddingsSpec, "tavily": TavilySpec}

LONG = 40  # Characters of a default that a table shows at most.


def keys_of(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yields (name, default, description) of each key of a model or of a dataclass. Keys of every backend are last."""
    if dataclasses.is_dataclass(kind):
        yield from ((each.name, default_text(each.default), each.doc) for each in options_of(kind))
    else:
        assert issubclass(kind, BaseModel)
        common = common_keys(kind)
        yield from sorted(_fields_of(kind), key=lambda key: (key[0] in common, key[0] != "kind"))
    yield from ((name, "none", doc) for name, (_, doc) in BESIDE.get(kind, {}).items())


def common_keys(kind: type[BaseModel]) -> list[str]:
    """Returns the keys of a kind of backend that mean the same for every kind."""
    if not issubclass(kind, BackendKeys):
        return []
    return [name for name, field in BackendKeys.model_fields.items() if kind.model_fields[name].description == field.description]


def _fields_of(model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    # Keys that are filled in when a YAML is read are left out.
    written = model.model_json_schema()["properties"]
    for name, field in ((name, field) for name, field in model.model_fields.items() if name in written):
        default = "" if field.is_required() else default_text(field.default)
        yield name, FILLED_IN.get(name, default) if issubclass(model, BackendKeys) else default, field.description or ""


def default_text(default: Any) -> str:
    """Returns the text of a default, such as `600`, `[tsq]` or none, or "" if there is no default."""
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, BaseModel):
        said = {name: value for name, value in default.model_dump(exclude_none=True).items() if value not in ("", {}, [], False)}
        return "as below" if len(said) > 2 else default_text(said)
    if type(default) in agents().values():
        return f"`{next(name for name, kind in agents().items() if kind is type(default))}`"
    if default is None or default in ("", {}, [], ()):
        return "none"
    text = default if isinstance(default, str) else f"{default:g}" if isinstance(default, float) else _flow(default)
    return "a general one" if len(text) > LONG else f"`{text}`"


def _flow(value: Any) -> str:
    """Returns a value as in a YAML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_flow(each)}' for name, each in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)


def table_of(*kinds: type, without: Sequence[str] = ()) -> Iterator[str]:
    """Yields the table of a model's keys. For several models with the same keys, each has a column of defaults."""
    names = [f"`{name}`" for kind in kinds for name, each in agents().items() if each is kind] if len(kinds) > 1 else ["default"]
    yield from (f"| key | {' | '.join(names)} | is |", f"|---|{'---|' * len(names)}---|")
    for keys in zip(*map(keys_of, kinds), strict=True):
        name, _, doc = keys[0]
        if name not in without:
            yield table_row(f"`{name}`", *(default for _, default, _ in keys), doc)
        if name in FLAT:
            yield from (table_row(f"`{name}.{inner}`", default, about) for inner, default, about in keys_of(FLAT[name]))


def _backend_table(kind: type[BaseModel]) -> Iterator[str]:
    """Yields the keys of a kind of backend, and a line that it has those of every backend."""
    common = common_keys(kind)
    yield from table_of(kind, without=common)
    yield f"| {', '.join(f'`{name}`' for name in common)} | | [as for every backend](choose.md#a-server-in-a-file) |"


def _preset_table() -> Iterator[str]:
    """Yields the constants of the router, with their values in each preset."""
    yield from (f"| constant | {' | '.join(f'`{name}`' for name in PRESETS)} | is |", f"|---|{'---|' * len(PRESETS)}---|")
    for name, field in Constants.model_fields.items():
        yield table_row(f"`{name}`", *(default_text(getattr(preset, name)) for preset in PRESETS.values()), field.description or "")


#: Page of docs/reference -> name -> table of keys.
YAML_TABLES: Mapping[str, Mapping[str, list[str]]] = {
    "suite-yaml.md": {
        "suite": [*table_of(SuiteSpec)],
        "role": [*table_of(RoleSpec)],
        "limits": [*table_of(LimitsSpec)],
        "answers": [*table_of(AnswerSpec)],
        "mcp": [*table_of(McpTools)],
    },
    "agent-options.md": {
        "tool_calling": [*table_of(ToolCalling)],
        "react": [*table_of(React)],
        "terminal": [*table_of(Terminal)],
        "command": [*table_of(Command)],
        "orchestrator": [*table_of(Orchestrator)],
        "self_evaluating": [*table_of(SelfEvaluating, SelfEvaluatingWithFeedback)],
    },
    "backend-yaml.md": {
        "url": [*table_of(UrlSpec)],
        "prices": [*table_of(Prices)],
        "embedded": [*_backend_table(EmbeddedSpec)],
        "recorded": [*_backend_table(RecordedSpec)],
        "hints": [*table_of(HintsSpec)],
        "attached": [*table_of(AttachedReadySpec)],
        "stack": [*_backend_table(StackKind)],
        "service": [*table_of(ServiceSpec)],
        "ready": [*table_of(ReadySpec)],
        "container": [*table_of(ContainerSpec)],
        "slurm": [*table_of(SlurmPlacement)],
        "kubernetes": [*table_of(ManifestSpec)],
    },
    "router-yaml.md": {"router": [*table_of(RouterConfig)], "constants": [*_preset_table()]},
    "nodes-yaml.md": {"ray": [*table_of(RayNodes)], "slurm": [*table_of(SlurmNodes)], "kubernetes": [*table_of(KubernetesNodes)]},
    "space-yaml.md": {"space": [*table_of(SpaceSpec)], "parameter": [*table_of(ParameterSpec)]},
}
