"""Converting schemas, labels and calls of the leaderboard's package without loss. These tests do not need the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import MissingData
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.bfcl import json_schema, label, load, package_schema, python_call
from pytest_agentbench.suites.folder import load_suite

ROOT = Path(__file__).parents[3]

LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "float", "boolean", "any"])}, optional={"description": st.text(max_size=5)}
)
NAMES = st.text("abtype$_", min_size=1, max_size=6)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("dict"), "properties": st.dictionaries(NAMES, inner, max_size=3)}, optional={"required": st.just([])}
        ),
        st.fixed_dictionaries({"type": st.sampled_from(["array", "tuple"]), "items": inner}),
    ),
    max_leaves=6,
)


@given(SCHEMAS)
def test_schemas_are_converted_without_loss(schema: Json) -> None:
    """A schema of the package becomes a JSON schema, from which the original can be made again."""
    converted = json_schema(schema)

    fastjsonschema.compile(converted)
    assert schema == package_schema(converted)


@pytest.mark.parametrize(
    ("theirs", "good", "bad"),
    [
        ("dict", {"a": 1}, [1]),
        ("float", 1, "1"),
        ("float", 1.5, None),
        ("integer", 1, 1.5),
        ("tuple", [1, "a"], {"a": 1}),
        ("array", [], ""),
        ("boolean", True, 1),
        ("string", "", 1),
    ],
)
def test_values_of_a_type(theirs: str, good: object, bad: object) -> None:
    """Each type of the package accepts its own values and no others. A schema that was a tuple is marked as one."""
    check = fastjsonschema.compile(json_schema({"type": theirs}))

    assert good == check(good)
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        check(bad)
    assert (theirs == "tuple") == ("$comment" in json_schema({"type": theirs}))


@pytest.mark.parametrize("value", [None, 1, "a", [], {}, True, 0.5])
def test_any_takes_everything(value: object) -> None:
    """The type `any` accepts every value."""
    assert value == fastjsonschema.compile(json_schema({"type": "any", "description": "Anything."}))(value)


DOCS: list[Json] = [
    {
        "name": "book.table",
        "parameters": {
            "type": "dict",
            "properties": {
                "city": {"type": "string"},
                "guests": {"type": "integer"},
                "note": {"type": "string"},
                "smoking": {"type": "boolean"},
                "at": {"type": "dict", "properties": {"hour": {"type": "integer"}, "zone": {"type": "string"}}},
                "dishes": {"type": "array", "items": {"type": "dict", "properties": {"name": {"type": "string"}}}},
            },
            "required": ["city", "smoking"],
        },
    }
]


@pytest.mark.parametrize(
    ("values", "accepts", "optional"),
    [
        ({"city": ["Rome", "Roma"]}, {"city": ["Rome", "Roma"]}, []),
        ({"guests": ["", 2]}, {"guests": [2]}, ["guests"]),
        ({"note": ["", "quiet"]}, {"note": ["", "quiet"]}, ["note"]),
        ({"note": [""]}, {"note": [""]}, ["note"]),
        ({"guests": ["", None]}, {"guests": [None]}, ["guests"]),
        ({"guests": []}, {"guests": []}, []),
        ({"smoking": [True, ""]}, {"smoking": [True]}, []),
        (
            {"at": [{"hour": [7, 19], "zone": ["", "CET"]}]},
            {"at": [{"accepts": {"hour": [7, 19], "zone": ["", "CET"]}, "optional": ["zone"]}]},
            [],
        ),
        (
            {"dishes": ["", [{"name": ["soup", "broth"]}, {"name": ["fish"]}]]},
            {"dishes": [[{"accepts": {"name": ["soup", "broth"]}, "optional": []}, {"accepts": {"name": ["fish"]}, "optional": []}]]},
            ["dishes"],
        ),
        ({"unknown": ["", 1]}, {"unknown": ["", 1]}, ["unknown"]),
    ],
)
def test_labels(values: Json, accepts: Json, optional: list[str]) -> None:
    """All accepted values are kept. "" means that an argument is optional, unless it is required, and is also a value if the argument is a
    text.
    """
    assert {"tool": "book.table", "accepts": accepts, "optional": optional} == label({"book.table": values}, DOCS)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from("abcd"), VALUES), st.integers(0, 4))
def test_python_calls_are_parsed(arguments: dict[str, Any], positional: int) -> None:
    """Positional and named arguments of a Python call are read with their values."""
    ordered = [*arguments]
    written = [repr(arguments[name]) for name in ordered[:positional]]
    written += [f"{name}={arguments[name]!r}" for name in ordered[positional:]]

    assert ("cp", arguments) == python_call(f"cp({', '.join(written)})", {"cp": ordered})


def test_a_missing_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the package is missing or has another version, the error names the suite's file and the command that installs the data."""
    command = "`pip install --no-deps bfcl-eval==2026.3.23`"
    suite = ROOT / "scenarios/bfcl/suite.yaml"
    load_suite(ROOT / "scenarios/banking/suite.yaml")  # imports all modules that are needed, before sys.path becomes empty
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    with pytest.raises(MissingData) as absent:
        load_suite(suite)
    (tmp_path / "bfcl_eval-1.0.dist-info").mkdir()
    (tmp_path / "bfcl_eval-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: bfcl-eval\nVersion: 1.0\n")
    with pytest.raises(MissingData) as other:
        load()

    said = f"{suite}: the data set is not installed; install it with {command} (2 MB, without the package's many dependencies)"
    assert said == str(absent.value)
    assert f"bfcl-eval 1.0 is installed, but this suite needs 2026.3.23; install it with {command}" == str(other.value)
