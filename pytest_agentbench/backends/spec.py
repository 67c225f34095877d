"""What a backend YAML may say, and where backends are found by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, field_validator, model_validator

from pytest_agentbench.backends.common_spec import BackendSpec
from pytest_agentbench.backends.stack.instances import refuse_mistakes
from pytest_agentbench.backends.stack.spec import LabelsField, LabelsSpec, StackSpec
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, load_yaml, override, validate
from pytest_agentbench.tap.heads import FRAMING, written


class EmbeddedSpec(BackendSpec):
    """The built-in engine, a process on loopback."""

    kind: Literal["embedded"]
    policy: str = "lexical"
    script: str | None = None  # the responses of policy `script`; relative to the YAML
    port: int = Field(default=0, ge=0, le=65535)  # 0: any free port
    ttft_ms: float = Field(default=0, ge=0)
    itl_ms: float = Field(default=0, ge=0)
    jitter: float = Field(default=0, ge=0, le=1)  # relative spread of both
    seed: int = 0
    error_rate: float = Field(default=0, ge=0, le=1)  # share of the tool calls that policy `careless` gets wrong
    max_concurrency: int | None = Field(default=None, ge=1)  # requests beyond it queue
    kv_blocks: int = Field(default=65_536, ge=1)  # blocks of the KV cache; requests that find no room queue
    block_size: int = Field(default=16, ge=1)  # tokens in a block
    request_log: str | None = None  # JSON lines of every request body


class RateLimit(Spec):
    """What a managed endpoint takes."""

    requests_per_minute: FiniteFloat | None = Field(default=None, gt=0)  # None: no limit


class UrlSpec(BackendSpec):
    """Anything that already runs and speaks the OpenAI API."""

    kind: Literal["url"]
    url: str  # base URL as OPENAI_BASE_URL has it, usually ending in /v1
    api_key_env: str | None = None  # name of the environment variable that holds the key
    ca_file: str | None = None  # certificate authority of an https URL, PEM
    headers: dict[str, str] = {}  # sent with every call; for secrets there is api_key_env
    metrics: list[str] = []  # URLs of metrics in Prometheus text; a YAML may give one as a text
    rate_limit: RateLimit = RateLimit()
    labels: LabelsField = LabelsSpec()

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, _ in written(headers):
            if name in FRAMING:
                raise ValueError(f"{name.decode()!r} cannot be set: the tap writes what belongs to a connection or a single request")
        return headers

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.api_key_env and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("api_key_env and a header `authorization` are two keys; leave one out")
        return self

    @field_validator("metrics", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("metrics")
    @classmethod
    def _are_http(cls, urls: list[str]) -> list[str]:
        return [cls._is_http(url) for url in urls]

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("should start with http:// or https://")
        return url.rstrip("/")


AnySpec = EmbeddedSpec | UrlSpec | StackSpec

KINDS: dict[str, type[AnySpec]] = {"embedded": EmbeddedSpec, "url": UrlSpec, "stack": StackSpec}


def load_backend(wanted: str, root: Path, changes: Sequence[tuple[str, Any]] = ()) -> AnySpec:
    """The backend that a name, a YAML file or a URL stands for; raises ConfigError with what is known."""
    if wanted.startswith(("http://", "https://")):
        data, where = {"kind": "url", "name": "url", "url": wanted}, wanted
    else:
        file = find_backend(wanted, root)
        data, where = {"name": file.stem, **load_yaml(file)}, str(file)
        if data.get("script"):
            data["script"] = str(file.parent / str(data["script"]))
        if "services" in data or "include" in data:
            data = {"kind": "stack", **_with_included(data, file), "here": str(file.parent.absolute())}
    data = override(data, changes, where)
    spec = validate(KINDS[_kind(data, where)], data, where)
    if isinstance(spec, StackSpec):
        try:
            refuse_mistakes(spec)
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


def _with_included(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """A stack with the services of the YAMLs that it includes before its own; raises ConfigError for a service that is there twice."""
    services: dict[str, Any] = {}
    wanted = data.pop("include", [])
    for name in [wanted] if isinstance(wanted, str) else wanted:
        other = load_yaml(file.parent / str(name))
        if unknown := [key for key in other if key not in ("services", "include", "note")]:
            raise ConfigError(f"{file.parent / str(name)}: {unknown[0]!r} cannot be in a file that others include; only services can")
        services = _joined(services, _with_included(other, file.parent / str(name))["services"], file)
    return {**data, "services": _joined(services, data.get("services") or {}, file)}


def _joined(services: dict[str, Any], more: dict[str, Any], file: Path) -> dict[str, Any]:
    if twice := sorted(services.keys() & more.keys()):
        raise ConfigError(f"{file}: the service {twice[0]!r} is there twice, here or in what is included")
    return {**services, **more}


def find_backend(wanted: str, root: Path) -> Path:
    """The YAML of a backend: a path, backends/NAME.yaml of the project, or a shipped one."""
    if wanted.endswith((".yaml", ".yml")):
        file = root / wanted if not Path(wanted).is_absolute() else Path(wanted)
        if not file.is_file():
            raise ConfigError(f"no backend file {wanted}; it is looked for at {file}")
        return file
    for folder in _folders(root):
        if (file := folder / f"{wanted}.yaml").is_file():
            return file
    known = ", ".join(known_backends(root)) or "none"
    raise ConfigError(f"no backend {wanted!r}; known: {known} (or give a YAML file, or a URL that starts with http)")


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


def shipped(kind: str) -> Path:
    """The folder of data that came with the package: `backends` or `scenarios`; in a checkout, the project's own."""
    package = Path(str(files("pytest_agentbench")))
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind
