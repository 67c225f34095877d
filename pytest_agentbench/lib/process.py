"""Starts and ends child processes, explains how they ended, inspects other processes, and ends processes that user code left running.

Other processes are inspected with psutil, which is imported when it is needed. Processes that user code left running are identified by
a variable in the environment with which they were started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.lib.supervisor import signal_group
from pytest_agentbench.lib.wire import LOG

PROC = Path("/proc")

Ready = TypeVar("Ready")

STARTS = 3  # attempts to replace a process that died, if each replacement dies before it is ready

_SCRUBBED = ("COV_", "COVERAGE_", "PYTEST_")  # A child must not take itself for the test run.
_SIGKILL = (-signal.SIGKILL, 128 + signal.SIGKILL)  # exit codes of a killed child, and of one started by a shell or in a container
_MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")


def usable_cores() -> int:
    """Returns the number of cores that this process may use. macOS does not restrict them, so there it is the number of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Child:
    """A child process of this package, such as the pool (which runs rollouts) or a tap (a recording HTTP proxy).

    It is `python -m <module>` in its own process session. It gets its configuration as one line on stdin, and writes one line to stdout
    when it is ready. It ends when its stdin closes, so it also ends if this process is killed.
    """

    def __init__(
        self,
        module: str,
        config: object,
        log: Path,
        *,
        pass_fds: tuple[int, ...] = (),
        variables: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        """Starts the process with the JSON of `config` on its stdin, without waiting for it. Its stderr goes to `log`.

        `variables` are added to its environment. `python` is its interpreter (None: the interpreter of this process).
        """
        line = json_text.dumps_any(codec.plain(config)) + b"\n"  # Before the start, because nothing would end the process if this failed.
        self.module = module
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [python or sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**child_environment(), LOG: str(log.absolute()), **(variables or {})},
                start_new_session=True,
                pass_fds=pass_fds,
            )
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # The process has already died; `ready` reports it.

    def ready(self, kind: type[Ready], timeout: float = 60) -> Ready:
        """Waits for the child's first line, and returns the message of type `kind` in it.

        Raises BackendError with the end of the log if the child dies, takes too long, or writes anything else. The child has ended then.
        """
        line, expired = first_line(self.process, timeout)
        if not line:
            why = f"did not serve within {timeout:g} s" if expired else "died before it was ready"
            raise BackendError(self.exit_message(why, by_us=expired))
        try:
            return codec.received(kind, json_text.loads(line))
        except ValueError as error:
            self.process.kill()
            raise BackendError(self.exit_message(f"was ended, because its first line cannot be parsed: {error}", by_us=True)) from error

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended, or is about to end: it has closed its stdin."""
        if self.process.poll() is not None or self.process.stdin is None or self.process.stdin.closed:
            return True
        pipe = select.poll()
        pipe.register(self.process.stdin, 0)
        return any(event & select.POLLERR for _, event in pipe.poll(0))

    def exit_message(self, why: str, *, by_us: bool = False) -> str:
        """Returns a message about a child that has ended: command, reason `why`, exit code and the end of its log.

        `by_us` leaves out the hint about the out-of-memory killer, because this process has killed the child.
        """
        try:
            code: int | None = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        sigkill = f"; {known}" if not by_us and (known := kill_hint(code)) else ""
        return f"`python -m {self.module}` {why} (exit code {code}){sigkill}; the end of {self.log.name}:\n{indented(tail(self.log))}"

    def cost(self) -> dict[str, float] | None:
        """Returns the CPU seconds (`cpu_s`) and peak memory (`peak_mib`) of the running child, or None if they are unknown."""
        return cost(self.process.pid)

    def stop(self, grace: float = 5) -> None:
        """Ends the process: closes its stdin, then sends SIGTERM, then SIGKILL, `grace` seconds apart. Returns when it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pid = self.process.pid
        for step in (self.process.stdin.close, lambda: signal_group(pid, signal.SIGTERM), lambda: signal_group(pid, signal.SIGKILL)):
            with contextlib.suppress(BrokenPipeError):  # The child ended before it read its configuration.
                step()
            if ended_within(self.process, grace):
                break
        self.process.stdout.close()

    def close_pipes(self) -> None:
        """Closes this side of the pipes to the child, which has ended or will be left running."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # The child ended before it read its configuration.
                pipe.close()

    def leave_alone(self) -> None:
        """Lets the child outlive this process. Prevents the warning of `subprocess` about a child that still runs."""
        self.close_pipes()
        self.process.returncode = 0


def start_again(start: Callable[[], Child | None], kind: type[Ready], seconds: float = 60.0) -> Ready | None:
    """Replaces a process that died. If the new process dies before it is ready, starts another one.

    Returns the first line of the new process, a message of type `kind`, or None if `start` returns None because the session ends.
    Raises BackendError if STARTS processes died in a row, or if one was not ready within `seconds`.
    """
    for left in reversed(range(STARTS)):
        began = time.monotonic()
        if (child := start()) is None:
            return None
        try:
            return child.ready(kind, seconds)
        except BackendError:
            child.close_pipes()
            if not left or time.monotonic() >= began + seconds:
                raise
    raise AssertionError("STARTS, the number of processes to start in a row, must be positive")


def child_environment() -> dict[str, str]:
    """Returns the environment for a child: without the variables of the test run, and without a proxy for loopback addresses."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1", "localhost")))
    return environment


def foreign_environment() -> dict[str, str]:
    """Returns `child_environment` for a program with another interpreter, without variables that point to this interpreter."""
    return {name: value for name, value in child_environment().items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def first_line(process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bool]:
    """Reads the first line that a process prints. Kills the process if that takes longer than `seconds`.

    Returns the line (empty if there is none), and whether the process was killed.
    """
    assert process.stdout is not None
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        line = process.stdout.readline()
        expired = not late.is_alive()
    finally:
        late.cancel()  # Also after Ctrl-C, because the interpreter would wait for the timer.
    return line, expired


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits at most `seconds` for the end of a child process. Returns whether it ended.

    `Popen.wait` polls, after some time only every 50 ms. A pidfd reports the end at once, if the system has it.
    """
    if hasattr(os, "pidfd_open") and process.poll() is None:
        with contextlib.suppress(OSError):  # Another thread has waited for the process, or the kernel is too old for pidfds.
            handle = os.pidfd_open(process.pid)
            try:
                ends = select.poll()
                ends.register(handle, select.POLLIN)
                if not ends.poll(seconds * 1000):
                    return False
            finally:
                os.close(handle)
    try:
        process.wait(seconds)  # After the pidfd's report, this waits only for another thread that is about to store the exit code.
    except subprocess.TimeoutExpired:
        return False
    return True


def end_group(leader: subprocess.Popen[bytes], grace: float = 0) -> None:
    """Kills a process group and waits for its leader. With `grace`, SIGTERM comes first, and the leader has so many seconds to end."""
    if grace and leader.poll() is None:
        signal_group(leader.pid, signal.SIGTERM)
        ended_within(leader, grace)
    signal_group(leader.pid, signal.SIGKILL)
    leader.wait()


def end_text(code: int) -> str:
    """Describes the end of a process, to follow its name: `was ended by SIGSEGV`, `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"  # Real-time signals have no names.


def kill_hint(code: int | None) -> str:
    """Explains an exit code that means SIGKILL. Returns an empty text for other exit codes."""
    if code not in _SIGKILL:
        return ""
    kills = _kills()
    counted = f"; the control group of this machine has counted {kills} out-of-memory kill{'s' * (kills > 1)}" if kills else ""
    return (
        "it was killed by SIGKILL, usually by the kernel's out-of-memory killer, otherwise by `kill -9`; `journalctl -k` or `dmesg` shows "
        f"which{counted}. Give it more memory, or reduce its use (lower concurrency, a smaller model or context)"
    )


def _kills() -> int:
    """Returns the number of out-of-memory kills in this control group, or 0 if it is unknown."""
    with contextlib.suppress(OSError, ValueError):
        counts = dict(line.split() for line in _MEMORY_EVENTS.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def cost(pid: int) -> dict[str, float] | None:
    """Returns the CPU seconds (`cpu_s`) and peak memory (`peak_mib`) of a running process without its children, or None if unknown."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return {"cpu_s": times.user + times.system, "peak_mib": _peak_kib(pid) / 1024}


def _peak_kib(pid: int) -> int:
    """Returns the peak memory of a process in KiB, or 0 if it is unknown. psutil has only the current value."""
    with contextlib.suppress(OSError):
        lines = (PROC / str(pid) / "status").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    return 0


def name(pid: int) -> str:
    """Returns the name of a process."""
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "of another container or user"


def lives(pid: int) -> bool:
    """Returns whether a process runs. A zombie does not count, because it has no resources."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def is_suspended(pid: int) -> bool:
    """Returns whether a process was suspended by SIGSTOP, or by a debugger."""
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def listener(port: int) -> int:
    """Returns the id of the process that listens on a port of this machine, or 0 if there is none or it is not visible."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
        return next((each.pid for each in sockets if each.pid and each.laddr and each.laddr.port == port), 0)
    return 0


def with_variable(variable: str) -> Iterator[tuple[int, str]]:
    """Yields (process id, value) of all other processes of this user that were started with a variable in their environment."""
    import psutil

    return ((pid, value) for pid in psutil.pids() if pid != os.getpid() and (value := variable_of(pid, variable)))


def variable_of(pid: int, variable: str) -> str:
    """Returns the value of an environment variable when a process was started, or an empty text if it cannot be read.

    Does not use psutil, which reads an environment only up to the first gap. Programs that write a title for `ps` over their environment
    leave such gaps.
    """
    prefix = f"{variable}=".encode()
    try:
        variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((os.fsdecode(each[len(prefix) :]) for each in variables if each.startswith(prefix)), "")


#: Environment variable of the pool, which all processes of agents and scorers inherit. Its value identifies the session.
SESSION = "AGENTBENCH_SESSION"

#: Environment variable of all processes that a rollout with `isolation: process` starts. Its value identifies the rollout's process.
ROLLOUT = "AGENTBENCH_ROLLOUT"

SETTLE_SECONDS = 0.5  # seconds in which processes that end with their parent may end by themselves
GRACE_SECONDS = 1.0  # seconds between SIGTERM and SIGKILL
_STEP = 0.02  # seconds between two checks of the process table
_ROUNDS = 100  # rounds of SIGKILL at most, because killed processes may have started others


def end_marked(variable: str, value: str, *, settle: float = SETTLE_SECONDS, grace: float = GRACE_SECONDS) -> int:
    """Ends all other processes of this user that were started with `variable` set to `value`. Returns how many got a signal.

    Each gets SIGTERM, and SIGKILL if it still runs after `grace` seconds. With `grace=0` it gets SIGKILL at once. A process that ends by
    itself within `settle` seconds gets no signal and is not counted. A process that cleared its environment is not found, and
    none is found on a system without /proc.
    """
    if not _remain(variable, value, settle):
        return 0
    signalled: set[int] = set()
    if grace:
        signalled |= _signal(variable, value, signal.SIGTERM)
        _remain(variable, value, grace)
    for _ in range(_ROUNDS):
        if not (killed := _signal(variable, value, signal.SIGKILL)):
            break
        signalled |= killed
        time.sleep(_STEP)
    return len(signalled)


def _pids(variable: str, value: str) -> list[int]:
    return [pid for pid, each in with_variable(variable) if each == value]


def _remain(variable: str, value: str, seconds: float) -> bool:
    """Waits at most `seconds` for the end of all processes with this value of an environment variable. Returns whether one still runs."""
    deadline = time.monotonic() + seconds
    while _pids(variable, value):
        if time.monotonic() >= deadline:
            return True
        time.sleep(_STEP)
    return False


def _signal(variable: str, value: str, number: signal.Signals) -> set[int]:
    """Sends a signal to all processes with this value of an environment variable. Returns the ids of those that got it."""
    reached = set()
    for pid in _pids(variable, value):
        with suppress(OSError):  # The process has ended.
            handle = os.pidfd_open(pid)
            try:
                if variable_of(pid, variable) == value:  # The id may have been reused before the handle was opened.
                    signal.pidfd_send_signal(handle, number)
                    reached.add(pid)
            finally:
                os.close(handle)
    return reached
