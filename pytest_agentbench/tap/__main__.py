"""`python -m pytest_agentbench.tap`: started by the controller, serves agents on one port and the pool on another."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys

from pytest_agentbench.lib.messages import end_with_stdin, raise_limit, read_config, serving
from pytest_agentbench.tap.agents import AgentConnection
from pytest_agentbench.tap.clock import keep_timestamping
from pytest_agentbench.tap.protocol import TapConfig, TapListening
from pytest_agentbench.tap.relay import Relay

if sys.platform != "win32":
    import resource

    import uvloop

    from pytest_agentbench.tap.cpu_turns import request_short_slices

BACKLOG = 4096  # connections that may come at once


async def serve(config: TapConfig) -> None:
    """Several taps share a port: the kernel spreads connections over those that listen on it."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    try:
        raise_limit()
        config = read_config(TapConfig)
    except ValueError as error:
        sys.stderr.write(f"tap config: stdin should begin with the config as a line of JSON: {error}\n")
        return 2
    if sys.platform == "win32":
        asyncio.run(serve(config))
    else:
        _take_all_descriptors()
        try:
            request_short_slices()
        except OSError as error:  # a container may forbid it
            sys.stderr.write(f"tap: its turns on the CPU are as long as those of others, so that it waits longer for them: {error}\n")
        gc.freeze()  # what is imported stays, and most of what calls leave behind is garbage without a cycle
        gc.set_threshold(20_000, 50, 100)
        uvloop.run(serve(config))
    return 0


def _take_all_descriptors() -> None:
    """Every stream in flight takes two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
