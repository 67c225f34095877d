"""Leases of GPUs among the processes of a host. AGENTBENCH_GPUS lists the GPUs, so the tests need none."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.gpus import Gpu, lease, named, visible, wait_released
from pytest_agentbench.errors import BackendError, MissingError

pytestmark = pytest.mark.timeout(60)

#: Leases the GPUs in its arguments, prints them, and holds them until stdin closes. It can also start a program that outlives it.
HOLDER = """
import subprocess, sys
from pytest_agentbench.backends.machine.gpus import Gpu, lease
with lease(int(sys.argv[1]), stack="stack 'other'") as got:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True) if "child" in sys.argv else None
    print(*got.ids, child.pid if child else "", flush=True)
    sys.stdin.read()
"""

Hold = Callable[..., tuple["subprocess.Popen[str]", list[str]]]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, and a folder of locks for one test."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "4, 5,GPU-8a")
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Returns a function that starts a process that leases some GPUs, and returns it and the words of its output."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(holder)
        assert holder.stdout is not None
        return holder, holder.stdout.readline().split()

    yield start
    for holder in started:
        holder.communicate(timeout=30)


def test_a_lease_keeps_others_out() -> None:
    """A leased GPU is not leased again, even in the same process. It is free after `release` or the end of a `with`."""
    with lease(2, stack="stack 'mine'") as first:
        second = lease(1)

        assert (("4", "5"), ("GPU-8a",)) == (first.ids, second.ids)
        with pytest.raises(MissingError, match=f"^a stack needs 1 GPU, and too few are free: GPU 4 is held by process {os.getpid()} of"):
            lease(1)
        second.release()
        second.release()
        with pytest.raises(MissingError, match="for stack 'mine' since"):
            lease(2)

    with lease(3) as everything:
        assert ("4", "5", "GPU-8a") == everything.ids
    with lease(0) as nothing:
        assert () == nothing.ids


def test_named_gpus() -> None:
    """GPUs can be named. All of them are leased or none, whatever their order."""
    with lease(0, named=["GPU-8a", 4], stack="stack 'mine'") as named:
        assert ("4", "GPU-8a") == named.ids
        with pytest.raises(MissingError, match="needs 2 GPUs, and too few are free: GPU GPU-8a is held by"):
            lease(0, named=[5, "GPU-8a"])
        with lease(0, named=[5]) as left:
            assert ("5",) == left.ids


def test_named_and_others() -> None:
    """The named GPUs come first. A lease that lacks one GPU holds none, so two leases never wait for each other."""
    with lease(1, named=["GPU-8a"]) as both:
        assert ("GPU-8a", "4") == both.ids
        with pytest.raises(MissingError, match="needs 2 GPUs, and too few are free: GPU 4 is held by"):
            lease(1, named=[5])
        with pytest.raises(MissingError, match="needs 2 GPUs, and too few are free: GPU GPU-8a is held by"):
            lease(1, named=["GPU-8a"])
        with lease(1) as left:
            assert ("5",) == left.ids


@pytest.mark.parametrize(
    ("count", "names", "sentence"),
    [
        (4, [], "4 GPUs needed; visible here: 4, 5, GPU-8a"),
        (3, [5], "4 GPUs needed; visible here: 4, 5, GPU-8a"),
        (0, [0], "GPU 0 is needed; visible here: 4, 5, GPU-8a"),
        (0, [4, 4], "name each GPU once: the 2 names 4, 4 stand for 1 GPU, 4"),
    ],
)
def test_gpus_that_do_not_exist(count: int, names: list[str | int], sentence: str) -> None:
    """GPUs that do not exist are an error at once, regardless of the waiting time."""
    with pytest.raises(MissingError, match=f"^{re.escape(sentence)}$"):
        lease(count, wait_s=3600, named=names)


def test_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs, the error has the reason."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "")

    with pytest.raises(MissingError, match=r"^1 GPU needed; visible here: none, because AGENTBENCH_GPUS is ''$"):
        lease(1)


def test_two_processes(hold: Hold) -> None:
    """Processes get different GPUs. The last one gets an error that names the holders."""
    holder, got = hold("2")

    assert ["4", "5"] == got
    with pytest.raises(MissingError, match=f"GPU 4 is held by process {holder.pid} of .+ for stack 'other' since "):
        lease(2)
    with lease(1) as left:
        assert ("GPU-8a",) == left.ids


def test_waiting(hold: Hold) -> None:
    """A waiting process gets a message with the reason, and gets the GPUs when their holder ends."""
    holder, _ = hold("3")
    told: list[str] = []

    def let_go(sentence: str) -> None:
        told.append(sentence)
        assert holder.stdin is not None
        holder.stdin.close()
        holder.stdin = None
        holder.wait(30)

    with lease(1, wait_s=30, on_wait=let_go) as got:
        assert ("4",) == got.ids
    assert 1 == len(told)
    assert f"held by process {holder.pid}" in told[0]


def test_waiting_ends() -> None:
    """After the waiting time, the error names it."""
    with lease(3), pytest.raises(MissingError, match=r"\(waited 0.01 s\)$"):
        lease(1, wait_s=0.01)


def test_a_killed_holder(hold: Hold) -> None:
    """A killed process loses its leases, even if a program that it started still runs."""
    holder, (*_, child) = hold("3", "child")
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)

    with lease(3) as got:
        assert ("4", "5", "GPU-8a") == got.ids
    assert [f"process {child} (sleep) is alive"] == wait_released((), [int(child)], 0.01)
    os.kill(int(child), signal.SIGKILL)
    assert [] == wait_released([Gpu("4")], [int(child)], 30)


def test_files_for_all_users(tmp_path: Path) -> None:
    """Folder and files are usable by all users of the host, whatever the umask. The note is removed with the lock."""
    mask = os.umask(0o077)
    lease(1).release()
    os.umask(mask)

    file = tmp_path / "locks" / "gpu-4.lock"
    assert (0o1777, 0o666, b"") == (
        stat.S_IMODE(file.parent.stat().st_mode),
        stat.S_IMODE(file.stat().st_mode),
        file.read_bytes(),
    )


def test_files_of_others(tmp_path: Path) -> None:
    """A link in place of a lock is not followed. A folder that cannot be used is named."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "gpu-4.lock").symlink_to(tmp_path / "precious")

    with pytest.raises(BackendError, match=r"the lock .*gpu-4.lock cannot be opened: .*; remove it, or set AGENTBENCH_LOCKS to"):
        lease(1)
    assert not (tmp_path / "precious").exists()


def test_a_file_without_a_note(tmp_path: Path) -> None:
    """A lock without a note counts as held."""
    with lease(1):
        (tmp_path / "locks" / "gpu-4.lock").write_text("{")
        with pytest.raises(MissingError, match="GPU 4 is held by a process that left no note"):
            lease(0, named=[4])


@pytest.mark.parametrize(
    ("listed", "ids"),
    [
        ("0,2", ["0", "2"]),
        ("", []),
        ("-1", []),
        ("1,-1,0", ["1"]),
        ("NoDevFiles", []),
        ("GPU-8932f937,MIG-3e5a", ["GPU-8932f937", "MIG-3e5a"]),
        ("1,1", ["1"]),
    ],
)
def test_the_callers_gpus(monkeypatch: pytest.MonkeyPatch, listed: str, ids: list[str]) -> None:
    """CUDA_VISIBLE_DEVICES is read as CUDA does: it ends at the first entry that is not a GPU."""
    if gpus.devices():
        pytest.skip("NOT RUN: NVML is here, and knows which of these exist")
    monkeypatch.delenv("AGENTBENCH_GPUS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)

    assert ids == [gpu.id for gpu in visible()]


def test_names_that_nvml_knows() -> None:
    """An index, a UUID, the beginning of one, and a MIG part stand for the UUID that is locked. Anything else ends the list."""
    parts = (gpus.Device("", "MIG-aa1", "H200 MIG 1g"), gpus.Device("", "MIG-ab2", "H200 MIG 1g"))
    devices = [gpus.Device("0", "GPU-11aa", "H200"), gpus.Device("1", "GPU-12bb", "H200"), gpus.Device("2", "GPU-13cc", "H200", parts)]

    def uuids(listed: str) -> list[str]:
        return [gpu.uuid for gpu in named(listed, devices)]

    assert ["GPU-12bb", "GPU-11aa"] == uuids("1, GPU-11")
    assert ["MIG-ab2", "MIG-aa1"] == uuids("MIG-ab2,2")
    assert ["MIG-aa1"] == uuids("GPU-13cc")
    assert ["GPU-12bb"] == uuids("1,GPU-1,0")
    assert [] == uuids("3,0")


def test_real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with GPUs, a free one can be leased and has a UUID."""
    if not gpus.devices():
        pytest.skip(f"NOT RUN: needs a GPU; {gpus.library()[1]}")
    monkeypatch.delenv("AGENTBENCH_GPUS")
    first = visible()[0]
    usage, load = gpus.usage(first.uuid), gpus.load(first.uuid)

    assert 0 < usage.free_mib <= usage.total_mib == load.total_mib
    assert re.fullmatch(r"\d+\.\d+", gpus.driver()[1])
    if not usage.processes:
        with lease(0, named=[first.id]) as got:
            assert (first,) == got.gpus
