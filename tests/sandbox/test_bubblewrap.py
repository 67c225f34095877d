"""Programs in a real bubblewrap: isolation and limits, and that no processes are left behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.cut_marks import mark
from pytest_agentbench.sandbox.bubblewrap import KIND, PROCESSES, Bubblewrap
from pytest_agentbench.sandbox.sandbox import BUBBLEWRAP, CodePlace, CommandResult
from tests.waits import wait_for

pytestmark = pytest.mark.slow

PLACE = CodePlace(BUBBLEWRAP, memory_mb=512, storage_mb=8)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def inside() -> AsyncIterator[Bubblewrap]:
    """Yields a started sandbox. Skips the test, with the reason, if this machine cannot run one."""
    bubblewrap = Bubblewrap("the sandbox of a test", PLACE)
    try:
        await bubblewrap.start()
    except InfraError as why:
        pytest.skip(f"NOT TESTED: bubblewrap; {why}")
    yield bubblewrap
    await bubblewrap.end()


async def python(inside: Bubblewrap, code: str, seconds: float = 60) -> CommandResult:
    return await inside.exec(f"python3 - <<'END'\n{code}\nEND", seconds=seconds)


def running(mark: str) -> list[int]:
    """Returns the processes of this machine that have a text in their command lines."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes()
        except OSError:
            continue
        if mark.encode() in words:
            found.append(int(each.parent.name))
    return found


def _wait_until_gone(mark: str) -> None:
    wait_for(lambda: not running(f"sleep\0{mark}"), "the end of the program", 60)


async def test_commands(inside: Bubblewrap) -> None:
    """The output of a command is in order, with its exit code. It runs as the user `nobody`, in a folder that is empty each time."""
    said = await inside.exec("echo one; echo two >&2; echo three > file; ls; exit 3", seconds=20)
    where = await inside.exec("pwd; id -u; ls; echo $COLOUR; hostname", seconds=20, env={"COLOUR": "blue"})
    killed = await inside.exec("kill -9 $$", seconds=20)
    unknown = await inside.exec("echo a\0b", seconds=20)

    assert (3, "one\ntwo\nfile\n", 0) == (said.exit_code, said.output, said.omitted)
    assert f"/tmp\n{os.geteuid() or 65534}\nblue\nsandbox\n" == where.output
    assert 137 == killed.exit_code
    assert (126, "bash: the command cannot be run: it has a NUL character\n") == (unknown.exit_code, unknown.output)
    assert KIND == inside.kind


async def test_isolation(inside: Bubblewrap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables, home folders, the repository, temporary files, processes, open files and privileges of this machine are not visible."""
    canary = secrets.token_hex(16)
    monkeypatch.setenv("CANARY", canary)
    (tmp_path / "secret").write_text(canary)
    everywhere = "cat /proc/*/environ /proc/*/task/*/environ; env; ls /proc/self/fd; cat /proc/*/cmdline; cat /proc/[0-9]*/root/etc/passwd"
    seen = await inside.exec(everywhere, seconds=20)
    paths = [Path.home(), REPOSITORY, tmp_path / "secret", Path(sys.prefix, "pyvenv.cfg"), "/etc/passwd", "/etc/shadow", "/var", "/run"]
    there = await inside.exec("; ".join(f"ls -d {path}" for path in paths), seconds=20)
    may = await inside.exec("grep -h -e ^Cap -e ^NoNewPrivs /proc/self/status; unshare -Ur true; mount -t tmpfs x /tmp", seconds=20)
    writable = await inside.exec(
        "for each in / /usr /usr/bin /etc /dev /proc; do touch $each/x && echo $each; done 2>/dev/null", seconds=20
    )

    assert "PATH=/usr/local/bin" in seen.output
    assert canary not in seen.output
    assert str(os.getpid()) not in seen.output.split("\n")
    assert len(paths) == there.output.count("No such file or directory")
    assert {"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} <= {*may.output.splitlines()}
    assert "unshare failed" in may.output
    assert "" == writable.output


async def test_no_network(inside: Bubblewrap) -> None:
    """Neither the internet nor a server of this machine can be reached, only the sandbox's own loopback."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    said = await python(
        inside,
        f"""import os, socket
for place in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
    try:
        socket.create_connection(place, 5)
        print("connected")
    except OSError as error:
        print(error.strerror)
print([name for _, name in socket.if_nameindex()])""",
    )
    server.close()

    assert "Connection refused\nNetwork is unreachable\n['lo']\n" == said.output


async def test_limits(inside: Bubblewrap) -> None:
    """Processes, memory, files, shared memory and time are limited, and the next command runs normally."""
    bomb = await python(
        inside,
        """import os, time
count = 0
try:
    while os.fork():
        count += 1
    time.sleep(60)
except OSError as error:
    print(count, error.strerror, flush=True)""",
    )
    hog = await python(inside, "x = bytearray(1 << 30)")
    full = await inside.exec(
        "head -c 6000000 /dev/zero > a; head -c 6000000 /dev/zero > b; du -sb --apparent-size . | cut -f 1", seconds=20
    )
    shared = await inside.exec("for i in 1 2 3 4 5 6 7 8 9 10; do head -c 8000000 /dev/zero > /dev/shm/$i; done", seconds=60)
    large = await inside.exec("head -c 9000000 /dev/zero > /dev/shm/x", seconds=20)
    loop = await python(inside, "print('begun', flush=True)\nwhile True: pass", 2)
    after = await inside.exec("echo as ever; ls", seconds=20)

    count, _, why = bomb.output.strip().partition(" ")
    assert (True, "Resource temporarily unavailable") == (PROCESSES // 2 < int(count) < PROCESSES, why)
    assert "MemoryError" in hog.output
    assert "No space left on device" in full.output
    assert int(full.output.split()[-1]) <= 8 << 20
    assert "No space left on device" in shared.output
    assert large.exit_code != 0
    assert (True, True) == (loop.output.startswith("begun\n"), loop.exit_code in (None, 137))
    assert "as ever\n" == after.output


async def test_much_output(inside: Bubblewrap) -> None:
    """The beginning and the end of long output are kept, with the size of the rest."""
    much = await inside.exec("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last", seconds=60)

    assert 5_000_012 == len(much.output) + much.omitted - len(f"\n{mark(much.omitted)}\n")
    assert much.output.startswith("first\nxxx")
    assert much.output.endswith("xxx\nlast\n")


async def test_processes_in_the_background(inside: Bubblewrap) -> None:
    """All processes of a command end when it is done, when its time is over, and when it is cancelled."""
    marks = [f"{9000 + number}.{secrets.randbelow(10**9)}" for number in range(4)]
    away = "setsid sleep {0} >/dev/null 2>&1 &"
    done = await inside.exec(f"{away.format(marks[0])} sleep 0.2", seconds=20)
    late = await inside.exec(f"{away.format(marks[1])} sleep {marks[1]}", seconds=1)
    silent = await inside.exec(f"exec >/dev/null 2>&1; {away.format(marks[2])} exec sleep {marks[2]}", seconds=1)
    waiting = asyncio.create_task(inside.exec(f"{away.format(marks[3])} sleep {marks[3]}", seconds=60))
    await asyncio.to_thread(wait_for, lambda: running(f"sleep\0{marks[3]}"), "the program", 60)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert (0, None, None, True) == (done.exit_code, late.exit_code, silent.exit_code, waiting.cancelled())
    for each in marks:
        await asyncio.to_thread(_wait_until_gone, each)


@pytest.mark.usefixtures("inside")
async def test_a_killed_owner(tmp_path: Path) -> None:
    """If the process that opened a sandbox is killed, nothing of the sandbox is left."""
    mark = f"9009.{secrets.randbelow(10**9)}"
    program = tmp_path / "program.py"
    program.write_text(f"""import asyncio
from pytest_agentbench.sandbox.bubblewrap import Bubblewrap
from pytest_agentbench.sandbox.sandbox import CodePlace
asyncio.run(Bubblewrap("one", CodePlace("bubblewrap")).exec("(setsid sleep {mark} >/dev/null 2>&1 &); sleep {mark}", seconds=600))
""")
    process = await asyncio.create_subprocess_exec(sys.executable, program)
    try:
        await asyncio.to_thread(wait_for, lambda: len(running(f"sleep\0{mark}")) >= 2, "both programs", 60)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()

    wait_for(lambda: not running(mark), "the end of the program", 60)


async def test_machines_without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no sandbox can start, the error has the reason: no program, a kernel that refuses, or no Python inside. The slot is released."""
    ended: list[str] = []
    _open_to_all(tmp_path)

    async def refusal() -> str:
        with pytest.raises(InfraError) as error:
            await Bubblewrap("the sandbox of a test", PLACE, lambda: ended.append("")).start()
        return str(error.value)

    monkeypatch.setenv("PATH", str(tmp_path))
    nowhere = await refusal()
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    forbidden = await refusal()

    assert "the program `bwrap` is not on the PATH; install bubblewrap 0.8 or later, or choose `code_sandbox: docker`" == nowhere
    assert forbidden.startswith("the sandbox of a test cannot be created: bwrap: No permissions to create new namespace; ")
    assert ["", ""] == ended


def _open_to_all(folder: Path) -> None:
    """Makes a folder accessible to all users, because bubblewrap runs as the user `nobody` if the tests run as root."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.getuid() and not each.stat().st_mode & 0o001:
            each.chmod(0o755)
