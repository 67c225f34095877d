"""Starts the engine: `python -m pytest_agentbench.engine`, with settings on stdin or as an argument such as `'{"port": 8000}'`."""

from __future__ import annotations

import sys
from typing import Any

from pytest_agentbench.engine.config import WHERE, parse_config
from pytest_agentbench.engine.server import Engine
from pytest_agentbench.lib.web_process import run_service, serve
from pytest_agentbench.lib.wire import raise_limit


async def engine(settings: Any) -> None:
    raise_limit()
    config = parse_config(settings)
    await serve(Engine(config).application(), WHERE, config.host, config.port, reuse_port=config.held)


if __name__ == "__main__":
    sys.exit(run_service(WHERE, engine))
