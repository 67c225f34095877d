"""LLMs of the NeMo Agent Toolkit become backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_config.models import read_judge, read_llm
from pytest_agentbench.exports.nat_config.reading import NatReading
from pytest_agentbench.records import Json

SERVER = {"_type": "dynamo", "model_name": "m", "base_url": "http://localhost:8000/v1"}


def backend_of(file: Path, **keys: Any) -> tuple[Json, list[str]]:
    """Returns the backend of an LLM, and the keys of the LLM that were not used."""
    file.write_text(yaml.safe_dump({"workflow": {}, "llms": {"m": {**SERVER, **keys}}}))
    reading = NatReading(file)
    backend = read_llm(reading, "m")[0]
    return backend, [path.removeprefix("llms.m.") for path, _ in reading.left_out() if path != "workflow"]


@pytest.mark.parametrize(
    ("hints", "labels"),
    [
        ({}, {"total_requests": 10, "osl": 512, "iat": 250}),
        ({"nvext_prefix_osl": "low", "nvext_prefix_iat": "HIGH"}, {"total_requests": 10, "osl": 128, "iat": 750}),
        ({"nvext_prefix_osl": 99, "nvext_prefix_iat": 7}, {"total_requests": 10, "osl": 99, "iat": 7}),
        ({"nvext_prefix_id_template": "a-{uuid}"}, {"total_requests": 10, "osl": 512, "iat": 250, "prefix": "a-{session}"}),
    ],
)
def test_hints(hints: Any, labels: Json, tmp_path: Path) -> None:
    """Hints become labels, words become numbers, and missing ones get the toolkit's defaults."""
    backend, left_out = backend_of(tmp_path / "a.yml", enable_nvext_hints=True, **hints)

    assert ({"kind": "dynamo", **labels}, []) == (backend["labels"], left_out)


def test_hints_that_are_off(tmp_path: Path) -> None:
    """Without `enable_nvext_hints: true`, the toolkit sends no hints, so that the backend has no labels."""
    backend, left_out = backend_of(tmp_path / "a.yml", nvext_prefix_osl="LOW")

    assert ({"kind": "url", "url": SERVER["base_url"], "model": "m"}, ["nvext_prefix_osl"]) == (backend, left_out)


def test_wrong_hint(tmp_path: Path) -> None:
    """A word that is no level is an error with the levels."""
    with pytest.raises(ConfigError, match=r"llms\.m\.nvext_prefix_osl must be a number, or one of LOW, MEDIUM, HIGH"):
        backend_of(tmp_path / "a.yml", enable_nvext_hints=True, nvext_prefix_osl="TINY")


def test_no_key_is_written(tmp_path: Path) -> None:
    """The name of a variable is carried over, and a key itself is not, nor is it in a message."""
    backend, left_out = backend_of(tmp_path / "a.yml", api_key="sk-0123456789abcdef")

    assert ("sk-" not in str((backend, left_out)), ["api_key"]) == (True, left_out)
    assert "A_KEY" == backend_of(tmp_path / "a.yml", api_key="${A_KEY}")[0]["api_key_env"]
    with pytest.raises(ConfigError) as error:
        backend_of(tmp_path / "a.yml", api_key=123456789)
    assert "123456789" not in str(error.value)


def test_default_server(tmp_path: Path) -> None:
    """An LLM of OpenAI needs no URL, and its key is in the usual variable. With a URL of its own, no key is assumed."""
    backend, _ = backend_of(tmp_path / "a.yml", _type="openai", base_url=None)

    assert ("https://api.openai.com/v1", "OPENAI_API_KEY") == (backend["url"], backend["api_key_env"])
    assert "api_key_env" not in backend_of(tmp_path / "a.yml", _type="openai")[0]
    with pytest.raises(ConfigError, match=r"llms\.m has no 'base_url'; add it"):
        backend_of(tmp_path / "a.yml", base_url=None)


def test_judge(tmp_path: Path) -> None:
    """A judge on the agent's own server is the default, and is not written."""
    (tmp_path / "a.yml").write_text(yaml.safe_dump({"workflow": {}, "llms": {"m": SERVER, "n": {**SERVER, "model_name": "n"}}}))
    reading = NatReading(tmp_path / "a.yml")
    own, _ = read_llm(reading, "m")

    assert {} == read_judge(reading, "m", own)
    assert {"judge": {"url": SERVER["base_url"], "model": "n"}} == read_judge(reading, "n", own)
