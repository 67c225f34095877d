"""Processes: how those of ours start and end, what their ends mean, what can be seen of others, and which user code left running.

Other processes are looked at with psutil, which is imported when it is needed. Those that user code left running are found by a variable
of the environment in which they were started.
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
from pytest_agentbench.lib.messages import LOG
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.lib.supervisor import signal_group

PROC = Path("/proc")

Ready = TypeVar("Ready")

STARTS = 3  # processes that are started in the place of one, if each of them dies before it serves

_SCRUBBED = ("COV_", "COVERAGE_", "PYTEST_")  # a child must not think that it is the test run
_SIGKILL = (-signal.SIGKILL, 128 + signal.SIGKILL)  # of a process, and of one behind a shell or in a container
_MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")


class Child:
    """One `python -m <module>` in a session of its own: told what to do in one line, says in one line that it serves.

    Its stdin is what ties it to the controller: however that ends, the pipe closes and the child leaves.
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
        """Starts the process with the JSON of `config` on its stdin, and does not wait for it. Its stderr goes to `log`.

        `variables` are added to its environment; `python` is another interpreter than this one.
        """
        line = json_text.dumps_any(codec.plain(config)) + b"\n"  # Before the process starts: nothing would end it if this failed.
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
            pass  # it died at once; `ready` says so with its log

    def ready(self, kind: type[Ready], timeout: float = 60) -> Ready:
        """Waits for the child's first line, and returns the message in it, which is of type `kind`.

        Raises BackendError with the log's tail when the child dies first or takes too long, or when its line is another one. It has
        ended then.
        """
        line, expired = first_line(self.process, timeout)
        if not line:
            why = f"did not serve within {timeout:g} s" if expired else "died before it was ready"
            raise BackendError(self.exit_message(why, by_us=expired))
        try:
            return codec.received(kind, json_text.loads(line))
        except ValueError as error:
            self.process.kill()
            raise BackendError(self.exit_message(f"was ended, since its first line cannot be read: {error}", by_us=True)) from error

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, or is about to: it has let go of its stdin, as of all its connections."""
        if self.process.poll() is not None or self.process.stdin is None or self.process.stdin.closed:
            return True
        pipe = select.poll()
        pipe.register(self.process.stdin, 0)
        return any(event & select.POLLERR for _, event in pipe.poll(0))

    def exit_message(self, why: str, *, by_us: bool = False) -> str:
        """Why a child is of no use any more, with its command, exit code and the tail of its log; `by_us`: it was we who killed it."""
        try:
            code: int | None = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        sigkill = f"; {known}" if not by_us and (known := kill_hint(code)) else ""
        return f"`python -m {self.module}` {why} (exit code {code}){sigkill}; the end of {self.log.name}:\n{indented(tail(self.log))}"

    def cost(self) -> dict[str, float] | None:
        """CPU seconds and peak memory (MiB) of the living process; None where the system does not tell."""
        return cost(self.process.pid)

    def stop(self, grace: float = 5) -> None:
        """Closes its stdin, then SIGTERM, then SIGKILL; returns when it is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pid = self.process.pid
        for step in (self.process.stdin.close, lambda: signal_group(pid, signal.SIGTERM), lambda: signal_group(pid, signal.SIGKILL)):
            with contextlib.suppress(BrokenPipeError):  # the child was gone before its config was read
                step()
            if ended_within(self.process, grace):
                break
        self.process.stdout.close()

    def close_pipes(self) -> None:
        """Closes this side of the pipes to a process that has ended, or that is left alone."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it ended before its config was read
                pipe.close()

    def leave_alone(self) -> None:
        """It outlives this process: nothing is to be waited for, and nothing to be warned of."""
        self.close_pipes()
        self.process.returncode = 0


def start_again(start: Callable[[], Child | None], kind: type[Ready], seconds: float = 60.0) -> Ready | None:
    """Starts a process in the place of one that died, and another one if it dies before it serves.

    Returns its first line, a message of type `kind`, or None if `start` returns None because the session ends. Raises BackendError if
    STARTS processes died in a row, or if one did not serve within `seconds`.
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
    raise AssertionError("STARTS is not positive")


def child_environment() -> dict[str, str]:
    """This environment without what belongs to the test run, and without a proxy for loopback."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1", "localhost")))
    return environment


def foreign_environment() -> dict[str, str]:
    """`child_environment` for a program of another interpreter, without what leads to this one."""
    return {name: value for name, value in child_environment().items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def first_line(process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bool]:
    """What a process says first, nothing where it ends without; and whether it was killed here, for it took longer than `seconds`."""
    assert process.stdout is not None
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        line = process.stdout.readline()
        expired = not late.is_alive()
    finally:
        late.cancel()  # after Ctrl-C as well: a timer keeps the interpreter until it is due
    return line, expired


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for the end of a process that this one started, and returns whether it came.

    `Popen.wait` looks every 50 ms when it has waited for some time. A pidfd tells at once, on systems that have it.
    """
    if hasattr(os, "pidfd_open") and process.poll() is None:
        with contextlib.suppress(OSError):  # the process ended and another thread waited for it, or the kernel is older
            handle = os.pidfd_open(process.pid)
            try:
                ends = select.poll()
                ends.register(handle, select.POLLIN)
                if not ends.poll(seconds * 1000):
                    return False
            finally:
                os.close(handle)
    try:
        process.wait(seconds)  # after a pidfd has told, only for another thread that took the exit code and is about to keep it
    except subprocess.TimeoutExpired:
        return False
    return True


def end_group(leader: subprocess.Popen[bytes], grace: float = 0) -> None:
    """SIGTERM, `grace` seconds, SIGKILL; what the leader of a group leaves behind is killed at once. Returns when the leader is gone."""
    if grace and leader.poll() is None:
        signal_group(leader.pid, signal.SIGTERM)
        ended_within(leader, grace)
    signal_group(leader.pid, signal.SIGKILL)
    leader.wait()


def end_text(code: int) -> str:
    """How a process ended, behind its name: `was ended by SIGSEGV`, `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"  # real-time signals have no names


def kill_hint(code: int | None) -> str:
    """What to think of an exit code that means SIGKILL; empty for any other."""
    if code not in _SIGKILL:
        return ""
    kills = _kills()
    counted = f"; this machine's control group has counted {kills} kill{'s' * (kills > 1)} by that" if kills else ""
    return (
        "it was killed by SIGKILL: mostly the kernel's out-of-memory killer, or somebody's `kill -9`; `journalctl -k` or `dmesg` says which"
        f"{counted}. Give it more memory, or let it take less (fewer in flight, a smaller model or context)"
    )


def _kills() -> int:
    """Processes of this control group that ran out of memory; 0 where nobody counts."""
    with contextlib.suppress(OSError, ValueError):
        counts = dict(line.split() for line in _MEMORY_EVENTS.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def cost(pid: int) -> dict[str, float] | None:
    """CPU seconds (`cpu_s`) and peak memory (`peak_mib`) of a living process, without its children; None where the system does not tell."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return {"cpu_s": times.user + times.system, "peak_mib": _peak_kib(pid) / 1024}


def _peak_kib(pid: int) -> int:
    """The most memory that a process had at a time; psutil knows only what it has now."""
    with contextlib.suppress(OSError):
        lines = (PROC / str(pid) / "status").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    return 0


def name(pid: int) -> str:
    """The name of a process."""
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "of another container or user"


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie has given everything back."""
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
    """Process id of who listens on a port of this machine; 0 where nobody does, or nobody who can be seen."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
        return next((each.pid for each in sockets if each.pid and each.laddr and each.laddr.port == port), 0)
    return 0


def with_variable(variable: str) -> Iterator[tuple[int, str]]:
    """(process id, value) of all living processes of this user, but this one, that were started with a variable in their environment."""
    import psutil

    return ((pid, value) for pid in psutil.pids() if pid != os.getpid() and (value := variable_of(pid, variable)))


def variable_of(pid: int, variable: str) -> str:
    """The value that a variable had when a process was started; empty for one that ended, belongs to somebody else, or cannot be seen.

    psutil reads an environment as far as the first gap. A program that writes a title for `ps` over its own leaves gaps, and is found.
    """
    prefix = f"{variable}=".encode()
    try:
        variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((os.fsdecode(each[len(prefix) :]) for each in variables if each.startswith(prefix)), "")


#: Variable of the pool, and so of all processes that agents and scorers start. Its value identifies the session.
SESSION = "AGENTBENCH_SESSION"

#: Variable of all processes that a rollout with `isolation: process` starts. Its value identifies the rollout's process.
ROLLOUT = "AGENTBENCH_ROLLOUT"

SETTLE_SECONDS = 0.5  # seconds in which processes that end with their parent may end by themselves
GRACE_SECONDS = 1.0  # seconds between SIGTERM and SIGKILL
_STEP = 0.02  # seconds between two looks at the process table
_ROUNDS = 100  # SIGKILLs of processes that start others meanwhile


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
    """Waits until no process has the mark, for at most `seconds`. Returns whether one still has it."""
    deadline = time.monotonic() + seconds
    while _pids(variable, value):
        if time.monotonic() >= deadline:
            return True
        time.sleep(_STEP)
    return False


def _signal(variable: str, value: str, number: signal.Signals) -> set[int]:
    """Sends a signal to all processes with the mark. Returns their ids."""
    reached = set()
    for pid in _pids(variable, value):
        with suppress(OSError):  # it ended
            handle = os.pidfd_open(pid)
            try:
                if variable_of(pid, variable) == value:  # The id may have become another process's before the handle was opened.
                    signal.pidfd_send_signal(handle, number)
                    reached.add(pid)
            finally:
                os.close(handle)
    return reached
