"""What a backend YAML may say, and where backends are found by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.common_spec import BackendSpec
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import load_yaml, override, validate
from pytest_agentbench.lib.import_path import load_object
from pytest_agentbench.lib.login_url import LoginUrl
from pytest_agentbench.lib.shipped import shipped

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
    known = ", ".join(known_backends(root)) or "none"
    raise ConfigError(f"no backend {name!r}; known: {known} (or give a YAML file, or a URL that starts with http)")


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
