"""The template process: imports a suite's code once, and forks a process for each job (the agent or one scorer of one rollout).

The pool starts it as `python -m pytest_agentbench.rollouts.isolation`. stdin is a socket to the pool. When it
closes, the template process and all processes that it forked end.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import logging
import os
import secrets
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.process import ROLLOUT, end_marked, end_text
from pytest_agentbench.lib.standard_streams import FORMAT, IN_A_ROLLOUT, refuse_input
from pytest_agentbench.lib.supervisor import signal_group
from pytest_agentbench.lib.wire import end_with_parent
from pytest_agentbench.rollouts.isolation import inside
from pytest_agentbench.rollouts.isolation.inside import PrintedOutput
from pytest_agentbench.rollouts.isolation.protocol import (
    COMMAND_BYTES,
    CONFIG,
    Fork,
    JobEnded,
    Kill,
    Loaded,
    NotLoaded,
    command_in,
)
from pytest_agentbench.rollouts.rollout import RolloutSetup, prepare
from pytest_agentbench.rollouts.scores import wants_judge


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The controller handles Ctrl-C.
    control = socket.socket(fileno=refuse_input(IN_A_ROLLOUT))
    end_with_parent(os.getppid(), signal.SIGTERM)
    faulthandler.enable()
    try:
        config = CONFIG.read(wire.receive(control)[0])
    except ValueError as error:
        wire.send(control, NotLoaded(str(error)))
        return
    logging.basicConfig(level=config.log_level, format=FORMAT)
    sys.path[:] = config.sys_path
    import aiohttp  # noqa: F401 - imported here, so that forked processes have them
    import openai  # noqa: F401

    try:
        setup = prepare(config.suite, config.variant, config.sizes)
    except ConfigError as error:
        wire.send(control, NotLoaded(str(error)))
        return
    judging = tuple(name for name, scorer in setup.scorers.items() if wants_judge(scorer))
    gc.freeze()  # Collections in a forked process would copy the memory that it shares with the others.
    wire.send(control, Loaded(judging, setup.settings))
    Forks(control, setup).serve()


class Forks:
    """The state of a template process: forks a process for each job, kills it when the pool asks, and reports its end to the pool."""

    def __init__(self, control: socket.socket, setup: RolloutSetup) -> None:
        self.control, self.setup, self.pid = control, setup, os.getpid()
        self.mark = secrets.token_hex(16)  # together with a job's number, identifies all processes that the job starts
        self.jobs: dict[int, int] = {}  # process id -> number of the job
        self.printed: dict[int, PrintedOutput] = {}  # process id -> output
        self.ready = selectors.DefaultSelector()
        self.wakeups, wakeup = os.pipe()
        for end in (self.wakeups, wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup)
        # From here on `control` closes when the pool ends, and the forked processes have to be killed then.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # With a Python handler the signal wakes `select` up.

    def serve(self) -> None:
        """Handles commands of the pool and exits of forked processes until the pool disconnects. Then kills all forked processes."""
        self.ready.register(self.wakeups, selectors.EVENT_READ, self._report_ends)
        self.ready.register(self.control, selectors.EVENT_READ, self._obey)
        try:
            while True:
                for key, _ in self.ready.select():
                    if self.ready.get_map().get(key.fd) is key:  # An earlier callback may have closed this pipe, at the end of its job.
                        key.data()
        except ConnectionError:
            return
        finally:
            for pid in self.jobs:
                signal_group(pid, signal.SIGKILL)

    def _obey(self) -> None:
        """Reads and carries out a command of the pool (`Fork` or `Kill`). Raises ConnectionError if the pool has disconnected."""
        data, descriptors, _, _ = socket.recv_fds(self.control, COMMAND_BYTES, 1)
        if not data:
            raise ConnectionError("the pool has closed the connection")
        match command_in(data):
            case Fork(number):
                self._fork(number, *descriptors)
            case Kill(number):
                for pid in [pid for pid, job in self.jobs.items() if job == number]:
                    signal_group(pid, signal.SIGKILL)

    def _fork(self, number: int, line: int) -> None:
        printed, pipe = PrintedOutput.through_pipe()
        pid = os.fork()
        if pid == 0:
            self._run_job_and_exit(number, line, pipe)
        with suppress(OSError):  # The process does the same itself, and may have ended already.
            os.setpgid(pid, pid)
        self.jobs[pid], self.printed[pid] = number, printed
        self.ready.register(printed, selectors.EVENT_READ, functools.partial(self._read, printed))
        os.close(line)
        os.close(pipe)

    def _read(self, printed: PrintedOutput) -> None:
        with suppress(BlockingIOError):
            if not printed.read():
                self.ready.unregister(printed)

    def _run_job_and_exit(self, number: int, line: int, pipe: int) -> NoReturn:
        """Runs a job in the forked process, and exits.

        Args:
            number: Number of the job.
            line: Descriptor of the socket to the pool.
            pipe: Descriptor to which stdout and stderr are redirected.
        """
        code = 1
        try:
            os.setpgid(0, 0)
            end_with_parent(self.pid, signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            os.environ[ROLLOUT] = f"{self.mark}-{number}"
            for descriptor in (1, 2):
                os.dup2(pipe, descriptor)
            os.close(pipe)
            inside.run_job(self.setup, socket.socket(fileno=line))
            code = 0
        except BaseException:  # The forked process must never continue with the code of the template process.
            traceback.print_exc()
        finally:
            os._exit(code)

    def _report_ends(self) -> None:
        os.read(self.wakeups, 4096)
        for pid in [*self.jobs]:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            signal_group(pid, signal.SIGKILL)  # Kill what it started. Its id cannot be reused before `waitpid`.
            _, status = os.waitpid(pid, 0)
            number, code = self.jobs.pop(pid), os.waitstatus_to_exitcode(status)
            end_marked(ROLLOUT, f"{self.mark}-{number}", settle=0, grace=0)
            wire.send(self.control, JobEnded(number, end_text(code), self._output_of(pid)))

    def _output_of(self, pid: int) -> str:
        """Returns the output of a process, shortened if it is long, and closes the pipe. Later output is lost."""
        printed = self.printed.pop(pid)
        with suppress(KeyError):  # The process had closed its end.
            self.ready.unregister(printed)
        return printed.end()


if __name__ == "__main__":
    main()
