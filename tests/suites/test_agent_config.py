"""agent_config.json as settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.agent_config import with_config

ORIGINAL = {
    "name": "nemotron",
    "model": "nvidia/nemotron",
    "api_base": "http://localhost:8000/v1",
    "api_type": "openai",
    "temperature": 0.7,
    "max_tokens": 2048,
}


def test_the_original(tmp_path: Path) -> None:
    """Its sampling parameters are settings, what stands beside it wins, and its address is the backend's affair."""
    (tmp_path / "agent_config.json").write_text(json.dumps(ORIGINAL))

    settings = with_config({"kind": "terminal", "config": "agent_config.json", "temperature": 0.0, "style": "text"}, tmp_path)

    assert {"kind": "terminal", "model": "nvidia/nemotron", "temperature": 0.0, "max_tokens": 2048, "style": "text"} == settings


def test_of_others(tmp_path: Path) -> None:
    """Another agent may have an option of that name."""
    settings = {"kind": "./agent.py:Mine", "config": "mine.json"}

    assert settings == with_config(settings, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "agent_config.json: not valid JSON"),
        ("[]", "agent_config.json: is list, should be an object"),
        ('{"temprature": 1}', "agent_config.json: unknown key 'temprature'; known keys: .*max_tokens"),
        (None, "agent_config.json: No such file"),
    ],
)
def test_faults(tmp_path: Path, text: str | None, words: str) -> None:
    """A file that cannot be meant is named with what is wrong."""
    if text is not None:
        (tmp_path / "agent_config.json").write_text(text)

    with pytest.raises(ConfigError, match=words):
        with_config({"kind": "terminal", "config": "agent_config.json"}, tmp_path)
