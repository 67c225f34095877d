"""The keys that all backend YAMLs have, and finding and loading a backend by its name, file or URL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, FiniteFloat

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.config import load_yaml, override, validate
from pytest_agentbench.lib.file_system import shipped
from pytest_agentbench.lib.options import LoginUrl
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.roles import ModelSpec, RoleSpecs, roles_as_json

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.backends.doctor.check import Check


@dataclass(frozen=True)
class SessionTerms:
    """Options of the session that affect its backend, in addition to the YAML."""

    keep: float | None = None  # seconds that it stays up after the session; None: it ends with the session
    gpu_wait: float = 0.0  # seconds to wait for GPUs that are in use
    warm_up: int = 0  # requests before anything is measured, unless the YAML has a number
    patience: float | None = None  # seconds to wait for a server that stopped answering; None: the default


class BackendKeys(ModelSpec):
    """The keys that the YAML of every backend has, whatever its kind."""

    name: str = Field(description="Reports call the backend by this name. The default is the name of the file without `.yaml`.")
    model: str | None = Field(
        default=None,
        description="The model name in requests, which the backend has to list. The default is the first model that it lists.",
    )
    thresholds: dict[str, dict[str, FiniteFloat]] = Field(
        default={}, description="Suite -> [thresholds](choose.md#thresholds-per-backend) that replace those of the suite on this backend."
    )
    note: str = Field(default="", description="A sentence for every report of a run on this backend.")
    prices: Prices | None = Field(default=None, description="[What tokens cost](choose.md#prices). Without it, no costs are reported.")
    roles: RoleSpecs = Field(
        default={}, description="Name -> [role](roles.md#roles-of-a-backend). These go before the roles that suites name."
    )
    placement: Literal["shared", "per-node"] | None = Field(
        default=None,
        description=(
            "`per-node`: each [node worker](nodes.md#a-backend-on-each-node) boots a copy on its own machine. The default is `shared`: "
            "all call the same one."
        ),
    )
    nodes: dict[str, dict[str, Any]] = Field(
        default={}, description="Name of a [launcher](scale.md) of node workers -> its settings, for `--agentbench-nodes=NAME`."
    )
    kind: str = Field(description="The kind of backend.")

    @property
    def endpoint_fields(self) -> Json:
        """The fields of an `Endpoint` that come from the YAML and not from the server: roles, prices, request fields, context length."""
        return {
            "roles": roles_as_json(self.roles),
            "prices": self.prices.model_dump(exclude_none=True) if self.prices else None,
            "request_fields": self.request_fields or {},
            "context_length": context_length_of(self.model_dump()),
        }

    @property
    def role_identity(self) -> Json:
        """The URLs and models of the roles (further models that agents call). They belong to the identity of the backend, unlike prices."""
        kept = {name: role.model_dump(exclude={"prices", "limits"}, exclude_none=True) for name, role in self.roles.items()}
        return {"roles": kept} if kept else {}


def context_length_of(keys: Json) -> int | None:
    """Returns the context length that a backend's YAML declares in a key or in `settings`, or None if it declares none."""
    declared = (place.get(name) for place in (keys, keys.get("settings", {})) for name in ("context_length", "max_model_len"))
    return next((int(each) for each in declared if each is not None), None)


class BackendSpec(BackendKeys):
    """A validated backend YAML. Each kind of backend has a subclass, which creates the `Backend` and checks what it needs."""

    @abstractmethod
    def make(self, terms: SessionTerms) -> Backend:
        """Returns a new backend, not yet started."""

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        """Returns the keys of a YAML before validation, with those that come from other files, such as included ones."""
        del file
        return data

    def refuse_mistakes(self, written: Json) -> None:
        """Raises ConfigError if keys contradict each other. It does not look at the machine.

        `written` are the keys of the YAML, without the changes of the command line.
        """

    def checks(self, *, reach: bool) -> Iterable[Check]:
        """Yields a check for each thing that the backend needs, in the order in which a boot needs them.

        Without `reach`, no other machine is contacted.
        """
        del reach
        return ()

    def submissions(self) -> Iterable[tuple[str, str]]:
        """Yields (name of a service, job script or manifest) for each service that Slurm or Kubernetes would place."""
        return ()

    def running_endpoint(self) -> Endpoint | None:
        """Returns the endpoint of a backend that already runs (`kind: url`), else None. Raises ConfigError if its API key is not set."""
        return None


RECORDED = "recorded:"  # before the run or file of a recording, in place of the name of a backend

#: Value of `kind` in a YAML -> class with the keys of that kind
KINDS: Mapping[str, str] = {
    "embedded": "pytest_agentbench.backends.embedded:EmbeddedSpec",
    "url": "pytest_agentbench.backends.url:UrlSpec",
    "stack": "pytest_agentbench.backends.stack.kind:StackKind",
    "recorded": "pytest_agentbench.backends.recorded:RecordedSpec",
}


def load_backend(name: str, root: Path, changes: Sequence[tuple[str, Any]] = ()) -> BackendSpec:
    """Loads a backend by its name, YAML file or URL, or from `recorded:RUN`. Raises ConfigError if it does not exist or is not valid."""
    data: dict[str, Any]
    if name.startswith(("http://", "https://")):
        url, file = LoginUrl(name), root
        where, data = str(url), {"kind": "url", "name": "url", "url": url}
    elif name.startswith(RECORDED):
        where, file = name, root / "backend.yaml"
        data = {"kind": "recorded", "name": "recorded", "run": find_recording(name.removeprefix(RECORDED), root)}
    else:
        file = find_backend(name, root)
        where, data = str(file), {"name": file.stem, **load_yaml(file)}
        if data.keys() & {"services", "include", "base"}:
            data = {"kind": "stack", **data}
    kind: type[BackendSpec] = load_object("backend kind", _kind(override(data, changes, where), where), KINDS, root)
    written = kind.completed(data, file)
    spec = validate(kind, override(written, changes, where), where)
    try:
        spec.refuse_mistakes(written)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return spec


def find_recording(name: str, root: Path) -> str:
    """Returns the path of a recording: the given path, or a run in `reports`."""
    return next((str(path) for path in (root / name, root / "reports" / name) if path.exists()), name)


def _kind(data: dict[str, Any], where: str) -> str:
    if "kind" not in data:
        has = ", ".join(key for key in data if key != "name")
        raise ConfigError(
            f"{where}: must have `services` (a stack), or `kind: embedded`, `kind: url` or `kind: recorded`; it has: {has or 'nothing'}"
        )
    kind = data["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return kind


def find_backend(name: str, root: Path) -> Path:
    """Returns the YAML of a backend: the given path, backends/NAME.yaml of the project, or a shipped file."""
    if name.endswith((".yaml", ".yml")):
        file = root / name if not Path(name).is_absolute() else Path(name)
        if not file.is_file():
            raise ConfigError(f"there is no backend file {name}: {file} does not exist")
        return file
    for folder in _folders(root):
        if (file := folder / f"{name}.yaml").is_file():
            return file
    raise ConfigError(f"{unknown_name('backend', name, known_backends(root))} (or give a YAML file, or a URL that starts with http)")


def known_backends(root: Path) -> list[str]:
    """Returns the names of all backends. Files NAME.script.yaml are scripts of backends, and are left out."""
    return sorted({name for folder in _folders(root) for name in _names(folder)})


def own_backends(root: Path) -> list[str]:
    """Returns the names of the backends in the project's own folder."""
    return sorted(_names(_folders(root)[0]))


def _names(folder: Path) -> Iterator[str]:
    return (file.stem for file in folder.glob("*.yaml") if not file.stem.endswith(".script"))


def _folders(root: Path) -> list[Path]:
    return [root / "backends", shipped("backends")]
