"""The tap's process, `python -m pytest_agentbench.tap`. The controller starts it; it serves agents on one port and the pool on another."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys

from pytest_agentbench.lib.wire import end_with_stdin, raise_limit, read_config, serving
from pytest_agentbench.tap.agents import AgentConnection
from pytest_agentbench.tap.clock import keep_timestamping
from pytest_agentbench.tap.protocol import TapConfig, TapListening
from pytest_agentbench.tap.relay import Relay

if sys.platform != "win32":
    import resource

    import uvloop

    from pytest_agentbench.tap.cpu_turns import request_short_slices

BACKLOG = 4096  # connections that the kernel queues until they are accepted


async def serve(config: TapConfig) -> None:
    """Serves until stdin ends or SIGTERM arrives.

    Several taps share the port for agents. The kernel distributes the connections among them.
    """
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    end_with_stdin(loop, end)
    loop.add_signal_handler(signal.SIGTERM, end.set)
    relay = Relay(config.token, config.budgets)
    shared = hasattr(socket, "SO_REUSEPORT")
    agents = await loop.create_server(lambda: AgentConnection(relay), "127.0.0.1", config.port, backlog=BACKLOG, reuse_port=shared)
    control = await asyncio.start_server(relay.control, "127.0.0.1", 0)
    serving(TapListening(agents.sockets[0].getsockname()[1], control.sockets[0].getsockname()[1]))
    with keep_timestamping():
        await end.wait()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The controller handles Ctrl-C.
    try:
        raise_limit()
        config = read_config(TapConfig)
    except ValueError as error:
        sys.stderr.write(f"tap config: stdin must begin with the config as a line of JSON: {error}\n")
        return 2
    if sys.platform == "win32":
        asyncio.run(serve(config))
    else:
        _take_all_descriptors()
        try:
            request_short_slices()
        except OSError as error:  # A container may forbid the system call.
            sys.stderr.write(f"tap: short CPU time slices were refused, so timings are less accurate on a busy machine: {error}\n")
        # Imported modules are never freed, and most objects of a finished call are not in cycles, so the collector can run rarely.
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        uvloop.run(serve(config))
    return 0


def _take_all_descriptors() -> None:
    """Raises the limit of file descriptors as far as allowed, because each call in flight needs two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
