"""Manifests of Kubernetes: reads and writes them as YAML, and adds labels to objects and to their pods."""

from __future__ import annotations

import copy
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import parse_yaml

RUN = "agentbench.io/run"  # label of everything that a session creates; its value is the name of the run
OWNER = "agentbench.io/owner"  # label of everything that a process creates; its value identifies the process

CONTROLLER = "agentbench.io/controller"  # label of the pod in which a session runs; a Service leads to it

MOST_LABEL = 63  # characters of a label's value


def read_manifests(text: str, where: str) -> list[dict[str, Any]]:
    """Parses the documents of a YAML text, also those in a `kind: List`. Raises ConfigError with `where` and what is wrong."""
    documents = [parse_yaml(each, where) for each in _documents(text)]
    objects = [
        item
        for document in documents
        if document is not None
        for item in (document.get("items", ()) if isinstance(document, dict) and document.get("kind") == "List" else (document,))
    ]
    for number, each in enumerate(objects, start=1):
        if not isinstance(each, dict) or not isinstance(each.get("metadata"), dict):
            raise ConfigError(f"{where}: document {number} is not an object of Kubernetes, which has apiVersion, kind and metadata.name")
        if missing := [key for key in ("apiVersion", "kind") if not each.get(key)] + ["metadata.name"] * (not each["metadata"].get("name")):
            raise ConfigError(f"{where}: document {number} has no {' and no '.join(missing)}")
    if not objects:
        raise ConfigError(f"{where}: has no object of Kubernetes")
    return objects


def _documents(text: str) -> list[str]:
    """Returns the documents of a YAML text, each after as many empty lines as are before it, so that line numbers in errors are right."""
    documents, lines = [""], text.splitlines()
    for number, line in enumerate(lines):
        if line.rstrip() == "---" or line.startswith("--- "):
            documents.append("\n" * number)
        documents[-1] += f"{line}\n"
    return documents


def yaml_text(objects: Iterable[Mapping[str, Any]]) -> str:
    """Returns objects as YAML documents, with their keys in the order that they have."""
    import yaml

    return "---\n".join(yaml.safe_dump(dict(each), sort_keys=False, width=120) for each in objects)


def labelled(manifest: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of an object with labels on it and on all templates of pods in it, wherever its kind has them."""
    changed = copy.deepcopy(dict(manifest))
    _label(changed, labels)
    _label_templates(changed, labels)
    return changed


def _label_templates(value: Any, labels: Mapping[str, str]) -> None:
    if isinstance(value, dict):
        if isinstance(spec := value.get("spec"), dict) and isinstance(spec.get("containers"), list):
            _label(value, labels)
        for each in value.values():
            _label_templates(each, labels)
    elif isinstance(value, list):
        for each in value:
            _label_templates(each, labels)


def _label(value: dict[str, Any], labels: Mapping[str, str]) -> None:
    metadata = value["metadata"] = {**(value.get("metadata") or {})}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}


def name_of(manifest: Mapping[str, Any]) -> str:
    """Returns kind and name of an object, such as `Job workers`."""
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def label_value(text: str) -> str:
    """Returns a text as a label may have it: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends."""
    kept = "".join(each if (each.isascii() and each.isalnum()) or each in "-_." else "-" for each in text)
    return kept[:MOST_LABEL].strip("-_.")


@cache
def _owner() -> str:
    return label_value(f"{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(3)}")


def own_labels(run: str) -> dict[str, str]:
    """Returns the labels of what this process creates for a run. No other process has the same."""
    return {RUN: label_value(run), OWNER: _owner()}


def selector(labels: Mapping[str, str]) -> str:
    """Returns the text that selects objects with these labels."""
    return ",".join(f"{name}={value}" for name, value in labels.items())
