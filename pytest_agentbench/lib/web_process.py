"""A web application as a process of its own: settings on stdin, the port on stdout, then it serves until stdin ends or SIGTERM.

With its settings as an argument stdin does not matter.
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
from pytest_agentbench.lib.messages import Listening, end_with_stdin, read_line, serving

BACKLOG = 1024  # connections that may come at once
SHUTDOWN = 0.1  # seconds for requests in flight


def run_service(where: str, service: Callable[[Any], Coroutine[Any, Any, None]]) -> int:
    """Runs `service` with the settings of this process, which sentences call `where`; its exit status, 2 with a sentence on stderr."""
    gc.freeze()  # what is imported stays: no collection looks at it again, nor those at the interpreter's end
    try:
        asyncio.run(service(json.loads(sys.argv[1]) if sys.argv[1:] else read_line()))
    except json.JSONDecodeError as error:
        return _report_error(f"{where}: {'the argument should be' if sys.argv[1:] else 'stdin should begin with'} a line of JSON: {error}")
    except AgentbenchError as error:
        return _report_error(str(error))
    return 0


async def serve(application: web.Application, where: str, host: str, port: int, *, reuse_port: bool = False) -> None:
    """Serves until this process is told to end; raises ConfigError where it cannot listen. Port 0 takes a free one."""
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
