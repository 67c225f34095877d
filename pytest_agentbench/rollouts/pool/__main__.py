"""`python -m pytest_agentbench.rollouts.pool`: started by the controller, which passes a listening socket and the suites."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time

from pytest_agentbench.lib import capture
from pytest_agentbench.lib.messages import Listening, end_with_stdin, raise_limit, read_config, serving
from pytest_agentbench.lib.process import SESSION, end_marked
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.rollouts.pool.controller_link import ControllerPipe
from pytest_agentbench.rollouts.pool.server import Pool
from pytest_agentbench.rollouts.pool.watchdog import Watchdog
from pytest_agentbench.rollouts.protocol import PoolConfig

LEFT = 2.5  # seconds that tasks and threads which user code has left running get to end, once all rollouts are over
GRACE = 10.0  # seconds between the end of stdin and the end of a pool that an agent blocks: sandboxes take a while to be removed


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    raise_limit()
    controller = os.getppid()
    config = read_config(PoolConfig)
    capture.install(config.settings.log_level)
    daemon(_leave_with_stdin, controller, name="leave")
    gc.freeze()  # what is imported stays: no collection looks at it again
    is_orphan = asyncio.run(_serve(config, socket.socket(fileno=config.listener)))
    if is_orphan:
        _end_leftovers()
    gc.freeze()  # nor do those at the interpreter's end look at what agents and scorers have imported


async def _serve(config: PoolConfig, listener: socket.socket) -> bool:
    """Runs the pool until the session ends or the controller dies. Returns whether the controller died."""
    sys.path[:] = config.settings.sys_path
    pool = Pool(config)
    watchdog = Watchdog(ControllerPipe(config.pipe), pool.runner.longest_s)
    watchdog.start()
    end_with_stdin(asyncio.get_running_loop(), pool.finished)
    serving(Listening(listener.getsockname()[1]))
    await pool.serve(listener)
    watchdog.stop()
    is_orphan = pool.draining is None
    daemon(_leave_behind, is_orphan, name="leave-behind")
    return is_orphan


def _leave_with_stdin(controller: int) -> None:
    """The loop sees the end of stdin too, but not while an agent blocks it, nor does it leave before the agents' threads do."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    time.sleep(GRACE)
    if os.getppid() != controller:  # A living controller ends the leftovers itself, after the pool's end, and counts them.
        _end_leftovers()
    os._exit(0)


def _end_leftovers() -> None:
    """Ends the processes that agents and scorers left running, if the pool was started with a session's mark."""
    if mark := os.environ.get(SESSION):
        end_marked(SESSION, mark)


def _leave_behind(is_orphan: bool) -> None:
    """Ends the process although code still runs: the event loop and the interpreter wait without a limit for tasks and threads.

    Nothing is lost. Sandboxes, templates and the stack's labels are released before, and each record is in the journal.
    """
    time.sleep(LEFT)
    if is_orphan:
        _end_leftovers()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
