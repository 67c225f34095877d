"""What a backend YAML may say, whatever its kind, and where backends are found by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, FiniteFloat

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.config import load_yaml, override, validate
from pytest_agentbench.lib.file_system import shipped
from pytest_agentbench.lib.options import LoginUrl
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.roles import ModelSpec, RoleSpecs, written

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.backends.doctor.check import Check


@dataclass(frozen=True)
class SessionTerms:
    """What a session asks of its backend besides what the YAML says."""

    keep: float | None = None  # seconds that it is left running after the session; None: it ends with it
    gpu_wait: float = 0.0  # seconds to wait for GPUs that others have
    warm_up: int = 0  # requests before anything is measured, where the YAML does not say how many
    patience: float | None = None  # seconds that a server which nobody watches may be away; None: the usual ones


class BackendKeys(ModelSpec):
    """Keys that every kind of backend has."""

    name: str = Field(description="Reports call the backend by this name. The default is the name of the file without `.yaml`.")
    model: str | None = Field(
        default=None,
        description="The model name in requests, which the backend has to list. The default is the first model that it lists.",
    )
    thresholds: dict[str, dict[str, FiniteFloat]] = Field(
        default={}, description="Suite -> [thresholds](backends.md#thresholds-per-backend) that replace those of the suite on this backend."
    )
    note: str = Field(default="", description="A sentence that stands in every report of a run on this backend.")
    prices: Prices | None = Field(default=None, description="[What tokens cost](backends.md#prices). Without it, no costs are reported.")
    roles: RoleSpecs = Field(
        default={}, description="Name -> [role](roles.md#roles-of-a-backend). These go before the roles that suites name."
    )
    kind: str = Field(description="The kind of backend.")

    @property
    def beside(self) -> Json:
        """The fields of an Endpoint about roles, prices and the model."""
        return {
            "roles": written(self.roles),
            "prices": self.prices.model_dump(exclude_none=True) if self.prices else None,
            "request_fields": self.request_fields or {},
            "context_length": context_length_of(self.model_dump()),
        }

    @property
    def who_plays(self) -> Json:
        """What of the roles decides how rollouts go: where they are, and which models."""
        kept = {name: role.model_dump(exclude={"prices", "limits"}, exclude_none=True) for name, role in self.roles.items()}
        return {"roles": kept} if kept else {}


def context_length_of(keys: Json) -> int | None:
    """Returns the context length that a backend's YAML declares, as a key of its own or as a setting of its engine."""
    declared = (place.get(name) for place in (keys, keys.get("settings", {})) for name in ("context_length", "max_model_len"))
    return next((int(each) for each in declared if each is not None), None)


class BackendSpec(BackendKeys):
    """A backend's YAML, and what its kind says of itself: how it is made, and what it needs."""

    @abstractmethod
    def make(self, terms: SessionTerms) -> Backend:
        """The backend, which nobody has started."""

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        """The keys of a YAML, with what it only names: files beside it, for example."""
        del file
        return data

    def refuse_mistakes(self) -> None:
        """Raises ConfigError for what is wrong with all keys together, whatever the machine."""

    def checks(self, *, reach: bool) -> Iterable[Check]:
        """What it needs of this machine, in the order in which a boot would find out. Without `reach` no other machine is asked."""
        del reach
        return ()

    def standing(self) -> Endpoint | None:
        """Where it answers without being booted; None where it has to be. Raises ConfigError when its key is not there."""
        return None


#: What a YAML may say is its `kind`: keys and all else that a kind says of itself.
KINDS: Mapping[str, str] = {
    "embedded": "pytest_agentbench.backends.embedded:EmbeddedSpec",
    "url": "pytest_agentbench.backends.url:UrlSpec",
    "stack": "pytest_agentbench.backends.stack.kind:StackKind",
}


def load_backend(name: str, root: Path, changes: Sequence[tuple[str, Any]] = ()) -> BackendSpec:
    """The backend that a name, a YAML file or a URL stands for; raises ConfigError with what is known."""
    data: dict[str, Any]
    if name.startswith(("http://", "https://")):
        url, file = LoginUrl(name), root
        where, data = str(url), {"kind": "url", "name": "url", "url": url}
    else:
        file = find_backend(name, root)
        where, data = str(file), {"name": file.stem, **load_yaml(file)}
        if "services" in data or "include" in data:
            data = {"kind": "stack", **data}
    kind: type[BackendSpec] = load_object("backend kind", _kind(override(data, changes, where), where), KINDS, root)
    spec = validate(kind, override(kind.completed(data, file), changes, where), where)
    try:
        spec.refuse_mistakes()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return spec


def _kind(data: dict[str, Any], where: str) -> str:
    if "kind" not in data:
        has = ", ".join(key for key in data if key != "name")
        raise ConfigError(f"{where}: should have `services` (a stack), or `kind: embedded` or `kind: url`; it has: {has or 'nothing'}")
    kind = data["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}: kind should be one of {', '.join(KINDS)}, not {kind!r}")
    return kind


def find_backend(name: str, root: Path) -> Path:
    """The YAML of a backend: a path, backends/NAME.yaml of the project, or a shipped one."""
    if name.endswith((".yaml", ".yml")):
        file = root / name if not Path(name).is_absolute() else Path(name)
        if not file.is_file():
            raise ConfigError(f"no backend file {name}; it is looked for at {file}")
        return file
    for folder in _folders(root):
        if (file := folder / f"{name}.yaml").is_file():
            return file
    raise ConfigError(f"{unknown_name('backend', name, known_backends(root))} (or give a YAML file, or a URL that starts with http)")


def known_backends(root: Path) -> list[str]:
    """All that can be chosen by name; NAME.script.yaml is what a backend says, and none itself."""
    return sorted({name for folder in _folders(root) for name in _names(folder)})


def own_backends(root: Path) -> list[str]:
    """Those of them that are the project's own."""
    return sorted(_names(_folders(root)[0]))


def _names(folder: Path) -> Iterator[str]:
    return (file.stem for file in folder.glob("*.yaml") if not file.stem.endswith(".script"))


def _folders(root: Path) -> list[Path]:
    return [root / "backends", shipped("backends")]
