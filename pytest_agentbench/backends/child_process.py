"""A child process of the session: told what to do in one line, says in one line that it serves, ends when its stdin closes.

The pipe is what ties it to the controller: however the controller ends, the pipe closes and the child leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.stack.log_hints import killed
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.log_tail import indented, tail

_SCRUBBED = ("COV_", "COVERAGE_", "PYTEST_")  # a child must not think that it is the test run


class Child:
    """One `python -m <module>` in a session of its own."""

    def __init__(
        self, module: str, config: dict[str, Any], log: Path, *, pass_fds: tuple[int, ...] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        """Starts it; does not wait. stderr goes to `log`; `variables` are added to the environment."""
        self.module = module
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**child_environment(), **(variables or {})},
                start_new_session=True,
                pass_fds=pass_fds,
            )
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(config).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; `ready` says so with its log

    def ready(self, timeout: float = 60) -> dict[str, Any]:
        """What the child says when it serves; raises BackendError with the log's tail when it dies first or takes too long."""
        assert self.process.stdout is not None
        late = threading.Timer(timeout, self.process.kill)
        late.start()
        line = self.process.stdout.readline()
        expired = not late.is_alive()
        late.cancel()
        if not line:
            why = f"did not serve within {timeout:g} s" if expired else "died before it was ready"
            raise BackendError(self.obituary(why, by_us=expired))
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, or is about to: it has let go of its stdin, as of all its connections."""
        if self.process.poll() is not None or self.process.stdin is None or self.process.stdin.closed:
            return True
        pipe = select.poll()
        pipe.register(self.process.stdin, 0)
        return any(event & select.POLLERR for _, event in pipe.poll(0))

    def obituary(self, why: str, *, by_us: bool = False) -> str:
        """Why a child is of no use any more, with its command, exit code and the tail of its log; `by_us`: it was we who killed it."""
        try:
            code: int | None = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        sigkill = f"; {known}" if not by_us and (known := killed(code)) else ""
        return f"`python -m {self.module}` {why} (exit code {code}){sigkill}; the end of {self.log.name}:\n{indented(tail(self.log))}"

    def cost(self) -> dict[str, float] | None:
        """CPU seconds and peak memory (MiB) of the living process; None where /proc does not tell."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        ticks = int(stat[11]) + int(stat[12])  # utime and stime, counted after the name
        peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
        return {"cpu_s": ticks / os.sysconf("SC_CLK_TCK"), "peak_mib": peak / 1024}

    def stop(self, grace: float = 5) -> None:
        """Closes its stdin, then SIGTERM, then SIGKILL; returns when it is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for step in (self.process.stdin.close, lambda: self._signal(signal.SIGTERM), lambda: self._signal(signal.SIGKILL)):
            with contextlib.suppress(BrokenPipeError):  # the child was gone before its config was read
                step()
            try:
                self.process.wait(grace)
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.stdout.close()

    def leave_alone(self) -> None:
        """It outlives this process: nothing is to be waited for, and nothing to be warned of."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.returncode = 0

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended in the meantime
            os.killpg(self.process.pid, number)


def child_environment() -> dict[str, str]:
    """This environment without what belongs to the test run, and without a proxy for loopback."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1", "localhost")))
    return environment


def foreign_environment() -> dict[str, str]:
    """The same for a program of another interpreter, without what leads to this one."""
    return {name: value for name, value in child_environment().items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
