"""The encoding of messages: each has the name of its class and its fields, and anything else is refused."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

import pytest_agentbench
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.wire import Hello, Messages, OtherVersion, Refused, header
from pytest_agentbench.records import RolloutKey


@dataclass(frozen=True)
class Begun:
    """A message with a secret key."""

    key: RolloutKey


@dataclass(frozen=True)
class Rested:
    """A message with two fields."""

    whole: bool
    count: int = 0


Small = Begun | Rested
SMALL: Messages[Small] = Messages(Small)


@pytest.mark.parametrize("message", [Begun(RolloutKey("shop", "shop-1", "default", 2)), Rested(whole=True), Rested(whole=False, count=3)])
def test_there_and_back(message: Small) -> None:
    """A message is encoded as the name of its class and its fields, and decoded as an equal message."""
    assert header(message)[0] == type(message).__name__
    assert message == SMALL.read(header(message))


def test_one_class() -> None:
    """A direction may have only one class of messages."""
    only: Messages[Rested] = Messages(Rested)

    assert only.read(["Rested", {"whole": True, "count": 2}]) == Rested(whole=True, count=2)


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (None, r"^None is not a message$"),
        ({"op": "rested"}, r"^\{'op': 'rested'\} is not a message$"),
        (["Rested"], r"^\['Rested'\] is not a message$"),
        (json_text.loads(b"[" * 1015 + b"]" * 1015), r"^\[{7}\.\.\.\]{7} is not a message$"),
        ([1, {}], r"^\[1, \{\}\] is not a message$"),
        (header(Hello("t", "test")), r"^the message 'Hello' is unknown; known are: Begun, Rested, Refused$"),
        (["Rested", []], r"^it is a list, not an object$"),
        (["Rested", {"whole": True}], r"^count is missing$"),
        (["Rested", {"whole": 1, "count": 1}], r"^whole is a whole number, not true or false$"),
        (["Rested", {"whole": True, "count": 1, "why": ""}], r"^why is unknown; known are: whole, count$"),
        (["Begun", {"key": ["shop", "shop-1", "default"]}], r"^key has 3 elements, not 4$"),
    ],
)
def test_damaged(damaged: object, sentence: str) -> None:
    """Anything that is not a message of the direction is refused, and the error names the first fault."""
    with pytest.raises(ValueError, match=sentence):
        SMALL.read(damaged)


def test_a_refusal() -> None:
    """A refusal because of another version is raised with its reason, whatever message was expected."""
    with pytest.raises(OtherVersion, match=r"^both need the same version$"):
        SMALL.read(header(Refused("both need the same version")))


def test_secrets_stay_out_of_logs() -> None:
    """The repr of a dataclass, which may appear in errors and logs, never contains a token or key."""
    package = Path(pytest_agentbench.__file__).parent
    secrets = {
        (record.name, field.target.id): ast.unparse(field.value) if field.value else ""
        for file in package.rglob("*.py")
        for record in ast.walk(ast.parse(file.read_text()))
        if isinstance(record, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in record.decorator_list)
        for field in record.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id in ("token", "api_key")
    }

    assert {"Hello", "TapConfig", "PoolConfig", "PoolAddress", "Endpoint", "UpstreamFacts"} < {name for name, _ in secrets}
    assert [] == [name for name, value in secrets.items() if "repr=False" not in value]
