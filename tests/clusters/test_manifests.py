"""Manifests are read from YAML, and labels reach all pods that an object makes."""

from __future__ import annotations

import pytest

from pytest_agentbench.clusters.manifests import label_value, labelled, read_manifests, selector, yaml_text
from pytest_agentbench.errors import ConfigError

TWO = """\
# a comment
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {text: "a\\n---\\nb"}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: server}}
---
"""


def test_documents_and_lists() -> None:
    """All documents are read, also those of a list. Written again and read again, they are the same."""
    objects = read_manifests(TWO, "stack.yaml")

    assert ["settings", "server"] == [each["metadata"]["name"] for each in objects]
    assert objects == read_manifests(yaml_text(objects), "again")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stack.yaml: has no object of Kubernetes"),
        ("a: 1", "stack.yaml: document 1 is not an object of Kubernetes, which has apiVersion, kind and metadata.name"),
        ("kind: Pod\nmetadata: {}", "stack.yaml: document 1 has no apiVersion and no metadata.name"),
        ("kind: Pod\n---\n\nkind: : x", "stack.yaml:4: not valid YAML: mapping values are not allowed in this context"),
    ],
)
def test_wrong_manifests(text: str, message: str) -> None:
    """An error names the file, and the line if the YAML is wrong."""
    with pytest.raises(ConfigError) as error:
        read_manifests(text, "stack.yaml")

    assert str(error.value).startswith(message)


def test_labels_reach_all_pods() -> None:
    """Labels are added to an object and to each template of pods in it, whatever its kind calls the template."""
    pods = {"spec": {"containers": [{"name": "main"}]}}
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "graph", "labels": {"app": "x"}},
        "spec": {"components": [{"podTemplate": pods}, {"template": {"metadata": {"labels": {"a": "b"}}, **pods}}, {"name": "no pods"}]},
    }

    changed = labelled(graph, {"run": "r1"})

    assert {"app": "x", "run": "r1"} == changed["metadata"]["labels"]
    first, second, third = changed["spec"]["components"]
    assert {"run": "r1"} == first["podTemplate"]["metadata"]["labels"]
    assert {"a": "b", "run": "r1"} == second["template"]["metadata"]["labels"]
    assert {"name": "no pods"} == third
    assert "metadata" not in pods
    assert "a=b,c=d" == selector({"a": "b", "c": "d"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("20260101-1200_x.y", "20260101-1200_x.y"), ("über/../host:17", "ber-..-host-17"), ("-" + "a" * 80, "a" * 62), ("", "")],
)
def test_values_of_labels(text: str, value: str) -> None:
    """A label's value has at most 63 characters of those that are allowed."""
    assert value == label_value(text)
