"""Starts the retriever: settings on stdin, the port on stdout, then it serves until stdin ends or SIGTERM.

With its settings as an argument, `python -m pytest_agentbench.retriever '{"index_dir": ...}'`, stdin does not matter.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from aiohttp import web

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.child import end_with_stdin, read_config, serving
from pytest_agentbench.retriever.config import WHERE, RetrieverConfig, parse_config
from pytest_agentbench.retriever.corpus import read_allowed
from pytest_agentbench.retriever.embeddings import embedder
from pytest_agentbench.retriever.index import Index
from pytest_agentbench.retriever.service import Retriever

HOST = "127.0.0.1"
SHUTDOWN = 0.1  # seconds for requests in flight


def main() -> int:
    try:
        asyncio.run(_serve(parse_config(json.loads(sys.argv[1]) if sys.argv[1:] else read_config())))
    except json.JSONDecodeError as error:
        return _refused(f"{WHERE}: {'the argument should be' if sys.argv[1:] else 'stdin should begin with'} a line of JSON: {error}")
    except AgentbenchError as error:
        return _refused(str(error))
    return 0


def _refused(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 2


async def _serve(config: RetrieverConfig) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    if not sys.argv[1:]:
        end_with_stdin(loop, stopped)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    allowed = read_allowed(Path(config.allowed)) if config.allowed else None
    retriever = Retriever(config, Index.read(Path(config.index_dir)), embedder(config.embeddings), allowed)
    await retriever.check()
    runner = web.AppRunner(retriever.application(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN)
    await runner.setup()
    try:
        await _listen(runner, config.port)
        serving(port=runner.addresses[0][1])
        await stopped.wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, port: int) -> None:
    try:
        await web.TCPSite(runner, HOST, port).start()
    except OSError as error:
        raise ConfigError(f"{WHERE}: cannot listen on port {port} of {HOST}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
