"""YAML files are read into validated models, and each fault is reported in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import PositiveSeconds, Spec, load_yaml, override, parse_yaml, validate
from pytest_agentbench.lib.json_text import read_text


class Wait(Spec):
    """A model with a duration."""

    timeout: PositiveSeconds


class Wheel(Spec):
    """A part of a model."""

    size: int
    spokes: int = 32


class Bicycle(Spec):
    """A model with a nested model, a mapping of models, and an optional one."""

    name: str
    front: Wheel = Wheel(size=28)
    spare: dict[str, Wheel] = {}
    third: Wheel | None = None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: [1", "f.yaml:3: not valid YAML: did not find expected ',' or ']'"),
        ("- a\nb: 1", "f.yaml:2: not valid YAML: did not find expected '-' indicator"),
        ("a: 1\n? [b]\n: 1", "f.yaml:2: not valid YAML: found unhashable key"),
        ("a: !!python/object:os.system x", "f.yaml:1: not valid YAML: could not determine a constructor for the tag"),
        ("a: \x00", "f.yaml: not valid YAML: unacceptable character #x0000"),
        ("day: 2024-13-45", "f.yaml: not valid YAML: month must be in 1..12"),
    ],
)
def test_invalid_yaml(text: str, sentence: str) -> None:
    """Text that is not YAML, or has values that cannot be built, is reported in one line, with the file and, if known, the line number."""
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}") as caught:
        parse_yaml(text, "f.yaml")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: the key 'a' occurs twice, first in line 1; keep one of them"),
        ("{a: 1, a: 1}", "f.yaml:1: the key 'a' occurs twice, first in line 1; keep one of them"),
        ('a: 1\n"a": 1', "f.yaml:2: the key 'a' occurs twice, first in line 1; keep one of them"),
        ("top:\n- b: {c: 1}\n- b:\n    c: 1\n    c: 2", "f.yaml:5: the key 'c' occurs twice, first in line 4; keep one of them"),
        ("1: a\n2: b\n1: c", "f.yaml:3: the key '1' occurs twice, first in line 1; keep one of them"),
    ],
)
def test_duplicate_keys(text: str, sentence: str) -> None:
    """A duplicate key is refused at any depth, and the message has the lines of both."""
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        parse_yaml(text, "f.yaml")


def test_keys_that_are_not_duplicates() -> None:
    """Keys merged by `<<` may be overridden, `1` and `'1'` are different keys, and anchors may be reused, even inside themselves."""
    merged = "x: {y: &base {<<: &deeper {size: 1, colour: red}, size: 2}}\nz: {<<: *base, colour: blue}\nagain: [*base, *deeper]"
    round_about = parse_yaml("a: &a {inner: *a}", "f.yaml")

    assert {"size": 2, "colour": "blue"} == parse_yaml(merged, "f.yaml")["z"]
    assert {1: "a", "1": "b"} == parse_yaml("1: a\n'1': b", "f.yaml")
    assert round_about["a"] is round_about["a"]["inner"]


@pytest.mark.parametrize(("text", "kind"), [("", "empty"), ("# nothing", "empty"), ("- a", "list"), ("word", "str")])
def test_a_yaml_file_holds_a_mapping(tmp_path: Path, text: str, kind: str) -> None:
    """A file that contains nothing, a list or a single word is refused. The message says which."""
    file = tmp_path / "f.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: is {kind}, must be a mapping of keys$"):
        load_yaml(file)


def test_unreadable_files(tmp_path: Path) -> None:
    """A file that is missing, is a folder or is not UTF-8 is named with the reason. A byte order mark is accepted."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: café".encode("latin-1"))
    marked = tmp_path / "marked.yaml"
    marked.write_bytes(b"\xef\xbb\xbfname: x")

    for file, reason in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (latin, "not UTF-8: byte 9 is 0xe9"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: {reason}"):
            read_text(file)
    assert {"name": "x"} == load_yaml(marked)


def test_override_replaces_values_at_dotted_paths() -> None:
    """Overrides replace or add values at any depth, in order. The original mapping is not changed."""
    data: dict[str, Any] = {"name": "x", "agent": {"kind": "a", "t": 0.1}, "empty": None}

    changed = override(data, [("agent.t", 0.6), ("agent.t", 0.7), ("new.deep.key", [1]), ("empty.key", 1)], "f.yaml")

    assert {"name": "x", "agent": {"kind": "a", "t": 0.7}, "new": {"deep": {"key": [1]}}, "empty": {"key": 1}} == changed
    assert {"name": "x", "agent": {"kind": "a", "t": 0.1}, "empty": None} == data


def test_override_through_a_value() -> None:
    """A path that leads through something other than a mapping is refused."""
    with pytest.raises(
        ConfigError, match=r"^f\.yaml: --agentbench-set name\.first: 'first' cannot be set inside 'x', which is not a mapping"
    ):
        override({"name": "x"}, [("name.first", 1)], "f.yaml")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"name": "x", "wheels": 2}, "unknown key 'wheels'; known keys: name, front, spare, third"),
        ({"nam": "x"}, "unknown key 'nam' (did you mean 'name'?); known keys: name, front, spare, third"),
        ({"name": "x", "front": {"size": 28, "colour": "red"}}, "unknown key 'front.colour'; known keys: size, spokes"),
        ({"name": "x", "third": {"size": 28, "colour": "red"}}, "unknown key 'third.colour'; known keys: size, spokes"),
        ({"name": "x", "spare": {"name": {"size": 28, "colour": "red"}}}, "unknown key 'spare.name.colour'; known keys: size, spokes"),
        ({}, "the key 'name' is missing"),
        ({"name": "x", "front": {}}, "the key 'front.size' is missing"),
        ({"name": 5}, "name: must be a text, not 5"),
        ({"name": "x", "spare": {"a": 1}}, "spare.a: must be a mapping of keys, not 1"),
    ],
)
def test_faulty_keys(data: dict[str, Any], sentence: str) -> None:
    """The message for a fault has the file and the path of the key. For an unknown key it lists the known keys at that place."""
    with pytest.raises(ConfigError) as caught:
        validate(Bicycle, data, "f.yaml")

    assert f"f.yaml: {sentence}" == str(caught.value)


@pytest.mark.parametrize(("written", "seconds"), [("10m", 600), ("90s", 90), ("1.5h", 5400), ("250ms", 0.25), ("7", 7), (2, 2), (0.5, 0.5)])
def test_durations(written: object, seconds: float) -> None:
    """A duration is a number of seconds, or a text with a unit. The validated field has seconds."""
    assert seconds == validate(Wait, {"timeout": written}, "f").timeout


@pytest.mark.parametrize("written", ["ten", "-5s", "10 minutes", ""])
def test_texts_that_are_not_durations(written: str) -> None:
    """The message for an invalid duration shows valid ones."""
    sentence = f"f: timeout: must be a time such as 200ms, 90s, 10m or 2h, or a number of seconds, not {written!r}"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        validate(Wait, {"timeout": written}, "f")
