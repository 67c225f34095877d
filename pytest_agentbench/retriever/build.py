"""Builds an index: `python -m pytest_agentbench.retriever.build CORPUS FOLDER EMBEDDINGS`, in an interpreter with the needed packages."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pytest_agentbench.errors import AgentbenchError
from pytest_agentbench.lib.config import validate
from pytest_agentbench.records import Json
from pytest_agentbench.retriever.config import EmbeddingsSpec
from pytest_agentbench.retriever.index import DOCUMENTS, INDEX, build, embedder, faiss

WHERE = "agentbench retriever build"


def build_index(corpus: Path, folder: Path, embeddings: Json) -> None:
    """Builds an index and prints its files. Raises ConfigError if a package is missing, before any vectors are computed."""
    spec = validate(EmbeddingsSpec, embeddings, WHERE)
    faiss()
    documents = asyncio.run(build(corpus, folder, embedder(spec)))
    print(f"wrote {folder / INDEX} and {folder / DOCUMENTS}: {documents} documents", flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    try:
        build_index(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    except AgentbenchError as error:
        sys.exit(str(error))
