"""Starts the retriever: `python -m pytest_agentbench.retriever`, with its settings on stdin or as an argument, `'{"index_dir": ...}'`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.web_process import run_service, serve
from pytest_agentbench.retriever.config import WHERE, expand_variables, parse_config
from pytest_agentbench.retriever.index import Index, embedder, read_allowed
from pytest_agentbench.retriever.service import Retriever

HOST = "127.0.0.1"


async def retriever(settings: Any) -> None:
    config = parse_config(settings)
    allowed = read_allowed(Path(expand_variables(config.allowed, "allowed"))) if config.allowed else None
    index = Index.read(Path(expand_variables(config.index_dir, "index_dir")), gpu=config.gpu)
    service = Retriever(config, index, embedder(config.embeddings), allowed)
    await service.check()
    await serve(service.application(), WHERE, HOST, config.port)


if __name__ == "__main__":
    sys.exit(run_service(WHERE, retriever))
