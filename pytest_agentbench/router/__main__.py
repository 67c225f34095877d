"""Starts the router: `python -m pytest_agentbench.router`, with its settings on stdin or as an argument, `'{"engines": ...}'`."""

from __future__ import annotations

import sys
from typing import Any

from pytest_agentbench.lib.web_process import run_service, serve
from pytest_agentbench.lib.wire import raise_limit
from pytest_agentbench.router.config import WHERE, RouterConfig, parse_config
from pytest_agentbench.router.server import RouterServer


async def router(settings: Any) -> None:
    raise_limit()
    config = parse_config(settings, RouterConfig)
    await serve(RouterServer(config).application(), WHERE, config.host, config.port)


if __name__ == "__main__":
    sys.exit(run_service(WHERE, router))
