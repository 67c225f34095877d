"""Roles of a suite.yaml or a backend's YAML: where they are played, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, validate
from pytest_agentbench.suites.roles import RoleSpecs


class Keys(Spec):
    """A YAML with nothing but roles."""

    roles: RoleSpecs


def read(roles: Any) -> RoleSpecs:
    return validate(Keys, {"roles": roles}, "suite.yaml").roles


def test_another_endpoint() -> None:
    """Its address has no slash at the end, so that two spellings are one endpoint."""
    assert "http://127.0.0.1:8000/v1" == read({"search": {"url": "http://127.0.0.1:8000/v1/", "model": "small"}})["search"].url


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (
            {"search": {"url": "ftp://127.0.0.1", "model": "m"}},
            "roles.search.url: should start with http:// or https://, not 'ftp://127.0.0.1'",
        ),
        ({"search": {"url": "http://127.0.0.1/v1"}}, "roles.search: an endpoint of its own needs a model: give 'model'"),
        ({"se arch": {}}, "roles.se arch: string should match pattern '^[a-z][a-z0-9_]{0,29}$', not 'se arch'"),
        ({"judge": {}}, "roles: the judge has a key of its own in suite.yaml: 'judge', beside 'roles'"),
    ],
)
def test_what_is_wrong(roles: Any, sentence: str) -> None:
    """One sentence names the file, the key, and what would work."""
    with pytest.raises(ConfigError) as caught:
        read(roles)

    assert f"suite.yaml: {sentence}" == str(caught.value)
