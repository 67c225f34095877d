"""Files with a prediction trie of the NVIDIA NeMo Agent Toolkit, which its client reads (`nvext_prediction_trie_path`)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import read_object
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.metrics.prediction_trie import TrieNode

VERSION = "1.0"


def write_trie(file: Path, workflow: str, root: TrieNode) -> None:
    """Writes a trie in the toolkit's format. `workflow` is the name of what was recorded."""
    now = datetime.now(UTC).isoformat()
    content = {"version": VERSION, "generated_at": now, "workflow_name": workflow, "root": codec.plain(root)}
    write_whole(file, json.dumps(content, indent=2) + "\n")


def read_trie(file: Path) -> TrieNode:
    """Reads a trie that this package or the toolkit wrote, and returns its root. Raises ConfigError if the file is no trie."""
    content = read_object(file, "version", "root")
    if content["version"] != VERSION:
        raise ConfigError(f"{file}: is a trie of the version {content['version']!r}, must be {VERSION!r}")
    try:
        return codec.read(TrieNode, content["root"], "root")
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; it must be a prediction trie of the NeMo Agent Toolkit") from error
