"""Roles in a suite.yaml or a backend's YAML: their endpoints and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, validate
from pytest_agentbench.records import Json
from pytest_agentbench.suites.roles import RoleSpecs, with_role_file


class Keys(Spec):
    """The keys of a YAML file that has only roles."""

    roles: RoleSpecs


def read(roles: Any) -> RoleSpecs:
    return validate(Keys, {"roles": roles}, "suite.yaml").roles


def test_another_endpoint() -> None:
    """The slash at the end of a role's address is removed, so that both spellings are one endpoint."""
    assert "http://127.0.0.1:8000/v1" == read({"search": {"url": "http://127.0.0.1:8000/v1/", "model": "small"}})["search"].url


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (
            {"search": {"url": "ftp://127.0.0.1", "model": "m"}},
            "roles.search.url: must start with http:// or https://, not 'ftp://127.0.0.1'",
        ),
        ({"search": {"url": "http://127.0.0.1/v1"}}, "roles.search: a role with a 'url' needs a 'model', too; add it"),
        ({"se arch": {}}, "roles.se arch: must be up to 30 lowercase letters, digits and `_`, with a letter first, not 'se arch'"),
        ({"judge": {}}, "roles: 'judge' is not one of the roles; write the judge under the key 'judge', next to 'roles'"),
    ],
)
def test_invalid_roles(roles: Any, sentence: str) -> None:
    """The error is one sentence with the file, the key, and what would work."""
    with pytest.raises(ConfigError) as caught:
        read(roles)

    assert f"suite.yaml: {sentence}" == str(caught.value)


PAPER = Path(__file__).parents[2] / "scenarios" / "hle" / "suite.yaml"


def test_the_roles_of_the_paper() -> None:
    """The shipped file has the models, providers and keys of the original evaluation, and its judge."""
    suite = with_role_file({"name": "hle", "roles": "paper_roles.yaml"}, PAPER)
    played = {**suite["roles"], "judge": suite["judge"]}

    openai, together = "https://api.openai.com/v1", "https://api.together.xyz/v1"
    assert {
        "reasoner": (openai, "gpt-5", "OPENAI_API_KEY"),
        "search": (openai, "gpt-5-mini", "OPENAI_API_KEY"),
        "answer": (together, "openai/gpt-oss-120b", "TOGETHER_API_KEY"),
        "judge": (openai, "gpt-5-mini", "OPENAI_API_KEY"),
    } == {name: (role["url"], role["model"], role["api_key"]) for name, role in played.items()}
    assert {"max_tokens": "max_completion_tokens", "temperature": None} == suite["roles"]["reasoner"]["request_fields"]


@pytest.mark.parametrize(
    ("text", "judge", "sentence"),
    [
        (
            "roles: {search: {ulr: x}}",
            {},
            "players.yaml: unknown key 'roles.search.ulr' (did you mean 'url'?); known keys: request_fields, context_length, url",
        ),
        ("search: {}", {}, "players.yaml: unknown key 'search'; known keys: roles, judge"),
        ("roles: {}\njudge: {}", {"judge": {}}, "suite.yaml: `judge` is also in players.yaml; remove one of the two"),
        (None, {}, "players.yaml: No such file or directory"),
    ],
)
def test_an_invalid_file_of_roles(tmp_path: Path, text: str | None, judge: Json, sentence: str) -> None:
    """The error about an invalid file of roles names that file."""
    if text is not None:
        (tmp_path / "players.yaml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        with_role_file({"roles": "players.yaml", **judge}, tmp_path / "suite.yaml")

    assert str(caught.value).startswith(f"{tmp_path}/{sentence}")


def test_roles_in_the_suite_itself() -> None:
    """If the roles are in suite.yaml itself, they are not changed."""
    suite: Json = {"roles": {"search": {}}}

    assert suite == with_role_file(suite, PAPER)
