"""Where a retriever finds its index."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.retriever.config import parse_config

EMBEDDINGS = {"embeddings": {"model": "m"}}


def test_the_folder_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings name it, or else the environment."""
    monkeypatch.setenv("INDEX_DIR", "/data/index")

    assert "/data/index" == parse_config(EMBEDDINGS).index_dir
    assert "own" == parse_config({**EMBEDDINGS, "index_dir": "own"}).index_dir


def test_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither does, both are named."""
    monkeypatch.delenv("INDEX_DIR", raising=False)

    with pytest.raises(ConfigError, match=r"index_dir: should be a folder .* INDEX_DIR may name it"):
        parse_config(EMBEDDINGS)
