"""The location of a retriever's index."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.retriever.config import expand_variables, parse_config

EMBEDDINGS = {"embeddings": {"model": "m"}}


def test_the_folder_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the index is that of the settings, also with an environment variable in it, or else that of INDEX_DIR."""
    monkeypatch.setenv("INDEX_DIR", "/data/index")

    folders = [parse_config({**EMBEDDINGS, **own}).index_dir for own in ({}, {"index_dir": "own"}, {"index_dir": "${INDEX_DIR}/2"})]
    assert ["/data/index", "own", "/data/index/2"] == [expand_variables(folder, "index_dir") for folder in folders]


def test_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """If neither the settings nor INDEX_DIR name a folder, the error names the variable."""
    monkeypatch.delenv("INDEX_DIR", raising=False)

    with pytest.raises(ConfigError, match=r"index_dir is \$INDEX_DIR, but the environment variable INDEX_DIR is not set"):
        expand_variables(parse_config(EMBEDDINGS).index_dir, "index_dir")
