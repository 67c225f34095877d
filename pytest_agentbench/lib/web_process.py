"""Runs a web application, such as the embedded engine (an OpenAI-compatible server), in a process of its own.

The process reads its settings from stdin and writes its port to stdout. It ends when stdin closes, or on SIGTERM. If the
settings are an argument of the command line, stdin is ignored.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.wire import Listening, end_with_stdin, read_line, serving

BACKLOG = 1024  # size of the queue of new connections
SHUTDOWN = 0.1  # seconds for running requests at shutdown


def run_service(where: str, service: Callable[[Any], Coroutine[Any, Any, None]]) -> int:
    """Runs the coroutine function `service` with the settings of this process until it returns.

    Returns the exit status: 0, or 2 after an error message on stderr. `where` names the settings in error messages.
    """
    gc.freeze()  # Garbage collections, also at exit, need not visit the imported modules.
    try:
        asyncio.run(service(json.loads(sys.argv[1]) if sys.argv[1:] else read_line()))
    except json.JSONDecodeError as error:
        return _report_error(f"{where}: {'the argument must be' if sys.argv[1:] else 'stdin must begin with'} a line of JSON: {error}")
    except AgentbenchError as error:
        return _report_error(str(error))
    return 0


async def serve(application: web.Application, where: str, host: str, port: int, *, reuse_port: bool = False) -> None:
    """Serves an application until stdin closes or a signal arrives. Port 0 selects a free port. Raises ConfigError if it cannot listen."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    if not sys.argv[1:]:
        end_with_stdin(loop, stopped)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=BACKLOG, reuse_port=reuse_port or None)
        await _listen(site, f"{where}: cannot listen on port {port} of {host}")
        serving(Listening(runner.addresses[0][1]))
        await stopped.wait()
    finally:
        await runner.cleanup()


async def _listen(site: web.TCPSite, refusal: str) -> None:
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"{refusal}: {error.strerror}") from None


def _report_error(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 2
