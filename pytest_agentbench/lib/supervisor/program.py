"""The supervisor of a command agent's program, which ends the program with all processes that it started.

The first line of stdin is a JSON object with the command to run. When stdin closes, because the rollout is over or the pool (the process
that runs rollouts) is dead, the program and all its processes are ended. At the end, the supervisor writes a JSON object to stdout:
exit code, output and resource use.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

from pytest_agentbench.lib.cut_marks import mark
from pytest_agentbench.lib.supervisor import end_orphans, signal_group, start_program

KEPT = 1 << 20  # bytes kept of each output and of the answer: half from the beginning, half from the end
LOGGED = 1 << 15  # bytes kept of outputs that are not the answer: half of the size of a rollout's log
GRACE = 2.0  # seconds between SIGTERM and SIGKILL, and for pipes that other processes may keep open


class Output:
    """Keeps the beginning and the end of the data that a program writes to a pipe or file, in bounded memory."""

    def __init__(self) -> None:
        self.head, self.tail = bytearray(), bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = KEPT // 2 - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > KEPT:
            del self.tail[: -KEPT // 2]

    def text(self, kept: int = KEPT) -> str:
        """Returns at most `kept` bytes as text. If some are left out, a line in the middle says how many."""
        if self.size <= kept:
            return (self.head + self.tail).decode(errors="replace")
        head, tail = self.head[: kept // 2], (self.head + self.tail)[-kept // 2 :]
        left_out = self.size - len(head) - len(tail)
        between = f"\n{mark(left_out)}\n".encode()
        return (head + between + tail).decode(errors="replace")


class ProgramSupervisor:
    """Runs one program until it and all processes that it started have ended."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self.outputs = {"stdout": Output(), "stderr": Output()}
        self.answer = folder / "answer"
        scenario = folder / "scenario.json"
        scenario.write_text(job["scenario"], encoding="utf-8")
        self.pipes = selectors.DefaultSelector()
        self.ended, wakeup = os.pipe()  # pipe that gets a byte whenever a child process ends
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.started_ns = time.monotonic_ns()
        with scenario.open("rb") as stdin:
            env = {**job["env"], "AGENTBENCH_SCENARIO": str(scenario), "AGENTBENCH_ANSWER": str(self.answer)}
            self.program = start_program(job["run"], job["cwd"], env, stdin=stdin.fileno(), stdout=PIPE, stderr=PIPE)
        for name in self.outputs:
            self.pipes.register(getattr(self.program, name), selectors.EVENT_READ, name)

    def watch(self) -> dict[str, Any]:
        """Waits until the program ends or stdin closes, then ends all processes. Returns the report."""
        self.pipes.register(0, selectors.EVENT_READ, "life")
        self.pipes.register(self.ended, selectors.EVENT_READ, "ended")
        self._read_until(lambda: self._is_over() or "life" not in self._open())
        if not self._is_over():
            signal_group(self.program.pid, signal.SIGTERM)
            self._read_until(self._is_over, GRACE)
        signal_group(self.program.pid, signal.SIGKILL)
        self.program.returncode = os.waitstatus_to_exitcode(os.waitpid(self.program.pid, 0)[1])
        ended_ns = time.monotonic_ns()
        end_orphans()
        cost = resource.getrusage(resource.RUSAGE_CHILDREN)  # sum over all processes that were waited for
        self._read_until(lambda: not self._open() & self.outputs.keys(), GRACE)
        answer = content(self.answer).text() if self.answer.is_file() else None
        return {
            "stdout": self.outputs["stdout"].text(KEPT if answer is None else LOGGED),
            "stderr": self.outputs["stderr"].text(LOGGED),
            "answer": answer,
            "program": {
                "exit_code": self.program.returncode,
                "started_ns": self.started_ns,
                "ended_ns": ended_ns,
                "cpu_s": cost.ru_utime + cost.ru_stime,
                "peak_mib": cost.ru_maxrss / 1024,
            },
        }

    def _read_until(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            for key, _ in self.pipes.select(left):
                data = os.read(key.fd, 1 << 16)
                if key.data in self.outputs:
                    self.outputs[key.data].add(data)
                if not data:
                    self.pipes.unregister(key.fd)

    def _open(self) -> set[str]:
        return {key.data for key in self.pipes.get_map().values()}

    def _is_over(self) -> bool:
        """Returns whether the program itself has ended. It stays a zombie, so that its process id is not reused."""
        return os.waitid(os.P_PID, self.program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def content(file: Path) -> Output:
    output = Output()
    with file.open("rb") as stream:
        while data := stream.read(1 << 16):
            output.add(data)
    return output


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    with tempfile.TemporaryDirectory(prefix="agentbench-", ignore_cleanup_errors=True) as folder:
        try:
            report = ProgramSupervisor(job, Path(folder)).watch()
        except OSError as error:
            report = {"failed": f"{error.strerror or error}: {error.filename}"}
    sys.stdout.write(json.dumps(report))
