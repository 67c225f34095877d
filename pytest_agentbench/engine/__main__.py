"""Starts the engine: settings on stdin, the port on stdout, then it serves until stdin ends or SIGTERM.

With its settings as an argument, `python -m pytest_agentbench.engine '{"port": 8000}'`, stdin does not matter.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from aiohttp import web

from pytest_agentbench.engine.config import WHERE, EngineConfig, parse_config
from pytest_agentbench.engine.server import Engine
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.child import end_with_stdin, read_config, serving
from pytest_agentbench.lib.file_limits import raise_limit

BACKLOG = 1024  # connections that may come at once
SHUTDOWN = 0.1  # seconds for requests in flight


def main() -> int:
    try:
        raise_limit()
        config = parse_config(json.loads(sys.argv[1]) if sys.argv[1:] else read_config())
        asyncio.run(_serve(config, Engine(config)))
    except json.JSONDecodeError as error:
        return _refused(f"{WHERE}: {'the argument should be' if sys.argv[1:] else 'stdin should begin with'} a line of JSON: {error}")
    except ConfigError as error:
        return _refused(str(error))
    return 0


def _refused(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 2


async def _serve(config: EngineConfig, engine: Engine) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    if not sys.argv[1:]:
        end_with_stdin(loop, stopped)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    runner = web.AppRunner(engine.application(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN)
    await runner.setup()
    try:
        await _listen(runner, config)
        serving(port=runner.addresses[0][1])
        await stopped.wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: EngineConfig) -> None:
    try:
        await web.TCPSite(runner, config.host, config.port, backlog=BACKLOG, reuse_port=config.held or None).start()
    except OSError as error:
        raise ConfigError(f"{WHERE}: cannot listen on port {config.port} of {config.host}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
