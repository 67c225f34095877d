"""`agentbench retriever`: an index of documents for the retriever."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """The parsers of this command."""
    retriever = commands.add_parser("retriever", help="build the index of documents that `python -m pytest_agentbench.retriever` searches")
    build = retriever.commands("what to do").add_parser("build", help="make vectors of a corpus, and write its index")
    build.add_argument("corpus", type=Path, metavar="CORPUS.jsonl", help="a document a line: {id, content}")
    build.add_argument("--output", type=Path, default=Path("index"), metavar="DIR", help="where to write (default: index)")
    build.add_argument("--model", required=True, help="that makes the vectors; the retriever has to name the same")
    build.add_argument("--url", help="base URL of an OpenAI-compatible server; without it the model is one of sentence-transformers")
    build.add_argument("--api-key", metavar="VARIABLE", help="environment variable with the server's key")
    build.set_defaults(run=run_build)


def run_build(options: argparse.Namespace) -> None:
    """Says what it wrote."""
    from pytest_agentbench.lib.config import validate
    from pytest_agentbench.retriever.config import EmbeddingsSpec
    from pytest_agentbench.retriever.embeddings import embedder
    from pytest_agentbench.retriever.index import DOCUMENTS, INDEX, build, faiss

    faiss()  # before anything is embedded
    given = {"url": options.url, "model": options.model, "api_key": options.api_key}
    spec = validate(EmbeddingsSpec, given, "agentbench retriever build")
    documents = asyncio.run(build(options.corpus, options.output, embedder(spec)))
    print(f"wrote {options.output / INDEX} and {options.output / DOCUMENTS}: {documents} documents")
