"""Sandboxes in a real Docker Engine."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.cut_marks import mark
from pytest_agentbench.sandbox.containers import DEADLINE, OWNER, ROLLOUT, RUN, owner
from pytest_agentbench.sandbox.sandbox import File
from tests.sandbox.conftest import IMAGE, KEY, Open, listed, runs
from tests.waits import wait_for

pytestmark = pytest.mark.slow


async def test_commands(opened: Open) -> None:
    """The output of a command is in order, with its exit code. User, folder and environment are the task's by default."""
    async with opened(env={"COLOUR": "blue"}, workdir="/tmp") as sandbox:
        said = await sandbox.exec("echo one; echo two >&2; echo three; exit 3", seconds=10)
        where = await sandbox.exec("echo $COLOUR; pwd; id -u", seconds=10)
        there = await sandbox.exec("echo $COLOUR; pwd; id -u", seconds=10, user="worker", workdir="/app", env={"COLOUR": "red"})
        quick = [await sandbox.exec(f"echo {number}", seconds=10) for number in range(5)]

    assert (3, "one\ntwo\nthree\n", 0) == (said.exit_code, said.output, said.omitted)
    assert "blue\n/tmp\n0\n" == where.output
    assert "red\n/app\n1000\n" == there.output
    assert ["0\n", "1\n", "2\n", "3\n", "4\n"] == [each.output for each in quick]


async def test_an_impossible_command(opened: Open) -> None:
    """If a command cannot be passed to a shell, the command fails, but not the sandbox."""
    async with opened() as sandbox:
        long = await sandbox.exec("true " + "x" * 200_000, seconds=10)
        nothing = await sandbox.exec("echo a\0b", seconds=10)
        unknown = await sandbox.exec("no-such-program", seconds=10)
        binary = await sandbox.exec(r"printf 'a\xffb'", seconds=10)

    assert (126, "bash: the command cannot be run: it has 200005 bytes, and 131071 is the most\n") == (long.exit_code, long.output)
    assert (126, "bash: the command cannot be run: it has a NUL character\n") == (nothing.exit_code, nothing.output)
    assert (127, "bash: line 1: no-such-program: command not found\n") == (unknown.exit_code, unknown.output)
    assert "a\ufffdb" == binary.output


async def test_a_command_that_takes_too_long(opened: Open) -> None:
    """A command that takes too long is killed with all its processes, also those in other sessions. Its output until then is kept."""
    started = "echo begun; (setsid sleep 999 &); (setsid bash -c 'sleep 998 & wait' &); sleep 997"
    async with opened() as sandbox:
        await sandbox.exec("(setsid sleep 555 >/dev/null 2>&1 &)", seconds=10)
        late = await sandbox.exec(started, seconds=1.5, user="worker")
        left = await sandbox.exec("ps -eo args | grep '^sleep'", seconds=10)

    assert (None, "begun\n") == (late.exit_code, late.output)
    assert ["sleep 555"] == [line for line in left.output.splitlines() if line[-3:] in ("999", "998", "997", "555")]


async def test_much_output(opened: Open) -> None:
    """The beginning and the end of long output are kept, with the size of the rest. The memory for this is limited."""
    async with opened() as sandbox:
        much = await sandbox.exec("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last", seconds=60)

    assert 5_000_012 == len(much.output) + much.omitted - len(f"\n{mark(much.omitted)}\n")
    assert much.output.startswith("first\nxxx")
    assert f"xx\n{mark(much.omitted)}\nxx" in much.output
    assert much.output.endswith("xxx\nlast\n")


async def test_files(opened: Open, tmp_path: Path) -> None:
    """A folder is copied with modes and links, and belongs to root. Only regular files can be read."""
    folder = tmp_path / "tests"
    (folder / "data").mkdir(parents=True)
    (folder / "test.sh").write_text("echo ran")
    (folder / "test.sh").chmod(0o750)
    (folder / "data" / "numbers").write_bytes(bytes(range(256)))
    (folder / "link").symlink_to("data/numbers")
    os.chown(folder / "test.sh", 1234, 1234) if os.geteuid() == 0 else None
    async with opened() as sandbox:
        await sandbox.put(folder, "/deep/tests")
        await sandbox.put(folder / "data" / "numbers", "/app/one")
        modes = await sandbox.exec("cd /deep/tests; stat -c '%a %u:%g' test.sh; ls -l link | cut -d ' ' -f 9-; ./test.sh", seconds=10)
        numbers = await sandbox.get("/app/one"), await sandbox.get("/deep/tests/data/numbers")
        await sandbox.exec("ln -s /etc/passwd /app/link; mkfifo /app/pipe; head -c 2000000 /dev/zero > /app/large", seconds=10)
        await sandbox.exec("echo mine > /app/own", seconds=10, user="worker")
        own = await sandbox.get("/app/own")
        refused = []
        for path in ("/app/link", "/app/pipe", "/app", "/app/large"):
            with pytest.raises(OSError, match=path) as error:
                await sandbox.get(path)
            refused.append(str(error.value).partition(": ")[2])
        with pytest.raises(FileNotFoundError, match="there is no /nowhere in the sandbox"):
            await sandbox.get("/nowhere")

    assert "750 0:0\nlink -> data/numbers\nran" == modes.output.strip()
    assert (File(bytes(range(256)), 0),) * 2 == numbers
    assert File(b"mine\n", 1000) == own
    assert ["it is a link", "it is a pipe", "it is a folder", "it has 2000000 bytes, and 1048576 is the most that is read"] == refused


async def test_the_end_of_processes(opened: Open) -> None:
    """`end_processes` ends the processes of all users, however many there are. Files stay, and the sandbox works afterwards."""
    async with opened() as sandbox:
        await sandbox.exec("echo kept > /app/file; (setsid sleep 999 &)", seconds=10, user="worker")
        await sandbox.end_processes()
        calm = await sandbox.exec("ps -eo args --no-headers | grep -v -e '^ps' -e '^grep' -e bash; cat /app/file", seconds=10)
        await sandbox.exec("f() { f | f & }; f; sleep 1", seconds=2)
        await sandbox.end_processes()
        bombed = await sandbox.exec("ps -eo args --no-headers | grep -v -e '^ps' -e '^grep' -e bash; cat /app/file", seconds=10)

    assert [2, "kept"] == [len(calm.output.splitlines()), calm.output.splitlines()[-1]]
    assert calm.output == bombed.output


async def test_a_crowd_of_processes(opened: Open) -> None:
    """The processes of several sandboxes are ended at the same time, repeatedly, and each sandbox works afterwards."""

    async def one() -> list[str]:
        async with opened() as sandbox:
            left = []
            for _ in range(3):
                await sandbox.exec("for i in {1..40}; do (setsid sleep 999 &); done; (setsid yes >/dev/null &)", seconds=20)
                await sandbox.end_processes()
                left.append((await sandbox.exec("ps -eo args --no-headers | grep -e 'sleep 999$' -e '^yes'; echo up", seconds=20)).output)
            return left

    assert [["up\n"] * 3] * 6 == await asyncio.gather(*(one() for _ in range(6)))


async def test_signals_from_inside(opened: Open) -> None:
    """Signals from inside cannot end a sandbox, and orphans do not remain as zombies."""
    async with opened() as sandbox:
        await sandbox.exec("for i in {1..64}; do kill -$i 1; done 2>/dev/null; (setsid sleep 0.1 &); kill -9 -1", seconds=10)
        after = await sandbox.exec("sleep 0.5; ps -eo stat --no-headers | grep Z; echo here", seconds=10)

    assert "here\n" == after.output


async def test_a_sandbox_that_has_ended(engine: Any, opened: Open) -> None:
    """If a sandbox has ended, its container is removed. A second end does nothing, and other methods raise an InfraError that says so."""
    async with opened() as sandbox:
        fresh = await sandbox.fresh()
        (one, other) = listed(engine)
        await sandbox.exec("echo used > /app/file", seconds=10)
        untouched = await fresh.exec("cat /app/file", seconds=10)
        await fresh.end()
        await sandbox.end()
        await sandbox.end()
        with pytest.raises(InfraError, match=rf"the sandbox of {re.escape(str(KEY))} has ended"):
            await sandbox.exec("true", seconds=10)

    assert 1 == untouched.exit_code
    assert [] == listed(engine, all=True)
    assert [owner()] * 2 == [each.labels[OWNER] for each in (one, other)]
    assert ("a-run", str(KEY)) == (one.labels[RUN], one.labels[ROLLOUT])
    assert one.labels[DEADLINE].isdigit()


async def test_a_container_that_was_removed(engine: Any, opened: Open) -> None:
    """If the container is removed from outside, all methods raise InfraError, so the rollout gets no score."""
    async with opened() as sandbox:
        (container,) = listed(engine)
        running = asyncio.create_task(sandbox.exec("sleep 30", seconds=40))
        await asyncio.to_thread(wait_for, lambda: runs(container, "sleep 30"), "the program")
        container.remove(force=True)
        with pytest.raises(InfraError, match="No such container"):
            await sandbox.exec("true", seconds=10)
        with pytest.raises(InfraError, match="No such container"):
            await sandbox.get("/etc/passwd")
        with pytest.raises(InfraError, match=r"ended while a command ran|is not running|No such"):
            await running


async def test_a_task_without_an_image(opened: Open) -> None:
    """If an image does not exist, an InfraError with its name is raised."""
    with pytest.raises(InfraError, match="pytest-agentbench/nowhere"):
        async with opened(image="127.0.0.1:9/pytest-agentbench/nowhere:1"):
            pass


async def test_an_image_that_is_built(engine: Any, opened: Open, tmp_path: Path) -> None:
    """The image of environment/ is built once for each content. If the build fails, the error has its output."""
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo built > /app/built\nUSER worker\n")
    async with opened(image="", image_digest="0123456789abcdef") as sandbox:
        built = await sandbox.exec("cat /app/built; id -un", seconds=10)
    engine.images.remove("agentbench-task:0123456789abcdef", force=True)
    (environment / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo it fails here; exit 7\n")
    with pytest.raises(InfraError, match=r"(?s)environment cannot be built: .*returned a non-zero code: 7; .*it fails here"):
        async with opened(image="", image_digest="0123456789abcdee"):
            pass

    assert "built\nworker\n" == built.output
