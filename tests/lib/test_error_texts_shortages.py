"""Errors about exhausted resources name the limit, tested with real limits."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_agentbench.lib import error_texts
from pytest_agentbench.lib.error_texts import address_space, shortage

#: A program that allocates a resource until that fails, and prints the result of `shortage` for the error.
ASKS = """
import os, resource, subprocess, threading
from pytest_agentbench.lib.error_texts import address_space, shortage
{before}
held = []
try:
    while True:
        held.append({ask})
        if callable(getattr(held[-1], "start", None)):
            held[-1].start()
except Exception as error:
    print(shortage(error), flush=True)
for each in held:
    getattr(each, "kill", bool)()
os._exit(0)
"""

SPACE = "space = address_space() + (400 << 20); resource.setrlimit(resource.RLIMIT_AS, (space, space))"
THREAD = "threading.Thread(target=threading.Event().wait)"


def output_under_limit(before: str, ask: str) -> str:
    """Returns the output of the program when it runs under a limit."""
    code = ASKS.format(before=before, ask=ask)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "" == done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("ask", "lacking"),
    [("bytearray(20 << 20)", "there is too little memory"), (THREAD, "there are too few threads or processes")],
    ids=["memory", "threads"],
)
def test_too_little_address_space(ask: str, lacking: str) -> None:
    """If a process exceeds its address space, by memory or by threads, the message has the limit, the current size and `ulimit -v`."""
    sentence = output_under_limit(SPACE, ask)

    assert sentence.startswith(f"{lacking}: ")
    assert "MiB of address space are allowed to a process, and " in sentence
    assert sentence.endswith("raise the limit (`ulimit -v`)")


@pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: a limit of processes holds for each user, and only root becomes another one")
@pytest.mark.parametrize("ask", [THREAD, "subprocess.Popen(['sleep', '60'])"], ids=["threads", "processes"])
def test_too_few_processes(ask: str) -> None:
    """If a user may not start more processes or threads, the message has `ulimit -u` and its value."""
    become = "resource.setrlimit(resource.RLIMIT_NPROC, (20, 20)); os.setuid(54321)"

    assert output_under_limit(become, ask).startswith("there are too few threads or processes: 20 are allowed to this user (`ulimit -u`)")


def test_too_few_open_files() -> None:
    """If a process may not open more files, the message has the limit."""
    sentence = output_under_limit("resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))", "open(os.devnull)")

    assert "there are too few open files: 30 are allowed to a process; raise the limit (`ulimit -n`)" == sentence


def test_other_errors() -> None:
    """Other errors are not shortages, except for the linker's message about missing memory."""
    assert "" == shortage(RuntimeError("no")) == shortage(ImportError("No module named 'x'")) == shortage(OSError(errno.ENOENT, "no"))
    assert shortage(ImportError("x.so: failed to map segment from shared object")).startswith("there is too little memory")


@pytest.mark.parametrize(("text", "named"), [("max\n", False), ("100\n", True), (None, False)])
def test_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, named: bool) -> None:
    """If a control group has a limit, the message contains it."""
    monkeypatch.setattr(error_texts, "PIDS", tmp_path / "pids.max")
    if text is not None:
        (tmp_path / "pids.max").write_text(text)

    assert named == ("100 to this control group (pids.max" in shortage(RuntimeError("can't start new thread")))


def test_address_space() -> None:
    """The size of the address space of a process is known, and is below its limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)

    assert 10 << 20 < address_space() < (1 << 50 if limit == resource.RLIM_INFINITY else limit)
