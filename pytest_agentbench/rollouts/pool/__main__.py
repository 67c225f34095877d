"""Entry point of the pool process: `python -m pytest_agentbench.rollouts.pool`. It gets a listening socket and a PoolConfig."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time

from pytest_agentbench.lib import standard_streams
from pytest_agentbench.lib.standard_streams import IN_A_ROLLOUT, refuse_input
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.lib.wire import Listening, end_with_stdin, raise_limit, read_config, serving
from pytest_agentbench.rollouts.pool.controller_link import ControllerPipe
from pytest_agentbench.rollouts.pool.server import Pool
from pytest_agentbench.rollouts.pool.watchdog import Watchdog, end_leftovers, exit_after_stdin
from pytest_agentbench.rollouts.protocol import PoolConfig

LEFT = 2.5  # seconds for tasks and threads that user code left running to end after the last rollout
GRACE = 10.0  # seconds from the end of stdin to the forced end of a pool that an agent blocks; includes removing sandboxes


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The controller handles Ctrl-C.
    raise_limit()
    controller = os.getppid()
    config = read_config(PoolConfig)
    standard_streams.install(config.settings.log_level)
    stdin = refuse_input(IN_A_ROLLOUT)
    daemon(exit_after_stdin, stdin, controller, GRACE, name="leave")
    gc.freeze()  # Imported objects stay, so collections need not scan them again.
    is_orphan = asyncio.run(_serve(config, stdin, socket.socket(fileno=config.listener)))
    if is_orphan:
        end_leftovers()
    gc.freeze()  # Collections at the end of the interpreter need not scan what agents and scorers have imported.


async def _serve(config: PoolConfig, stdin: int, listener: socket.socket) -> bool:
    """Runs the pool until the session ends or the controller dies, which closes `stdin`. Returns True if the controller died."""
    sys.path[:] = config.settings.sys_path
    pool = Pool(config)
    watchdog = Watchdog(ControllerPipe(config.pipe), pool.runner.longest_s)
    watchdog.start()
    end_with_stdin(asyncio.get_running_loop(), pool.finished, stdin)
    serving(Listening(listener.getsockname()[1]))
    await pool.serve(listener)
    watchdog.stop()
    is_orphan = pool.draining is None
    daemon(_exit_anyway, is_orphan, name="leave-behind")
    return is_orphan


def _exit_anyway(is_orphan: bool) -> None:
    """Exits after LEFT seconds even if user code still runs, because the event loop and the interpreter would wait for it without a limit.

    If the controller has died (`is_orphan`), first ends the processes that agents left running. Nothing is lost: sandboxes, templates and
    the stack's labels have been released, and each record is in the journal.
    """
    time.sleep(LEFT)
    if is_orphan:
        end_leftovers()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
