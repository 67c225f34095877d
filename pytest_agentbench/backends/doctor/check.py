"""One thing that a backend needs, and whether it is here; the checks of ports, disk, keys and servers that all kinds share."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from pytest_agentbench.backends.machine.ports import holder, is_free


class Check(NamedTuple):
    name: str
    state: Literal["ok", "missing", "unknown", "absent"]
    detail: str
    fix: str = ""  # what to do where it is not ok, or who needs it


def ok(name: str, detail: str) -> Check:
    return Check(name, "ok", detail)


def missing(name: str, detail: str, fix: str) -> Check:
    return Check(name, "missing", detail, fix)


def unknown(name: str, detail: str, fix: str = "") -> Check:
    return Check(name, "unknown", detail, fix)


def absent(name: str, detail: str, need: str) -> Check:
    """Not here, and nothing that was examined needs it."""
    return Check(name, "absent", detail, need)


PATIENCE = 3.0  # seconds that a server gets to take a connection
SPACE_GB = 1.0  # that logs and reports should have


def port_checks(ports: Sequence[int]) -> Iterator[Check]:
    """Those that the YAML names; 0 is any free one."""
    for port in sorted({*ports} - {0}):
        if is_free(port):
            yield ok(f"port {port}", "free")
        else:
            yield missing(f"port {port}", f"{holder(port)} has it", "end that, or leave the port out of the YAML to get a free one")


def disk_check() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < SPACE_GB:
        return missing("disk", f"{free:.1f} GB free here, for logs and reports", "free some, or see --agentbench-reports")
    return ok("disk", f"{free:.1f} GB free here, for logs and reports")


def key_checks(variable: str | None) -> Iterator[Check]:
    """Whether the environment variable with a server's key is set, if there is one."""
    if variable is None:
        return
    if os.environ.get(variable, "").strip():
        yield ok("key", f"{variable} is set")
    else:
        yield missing("key", f"{variable} is not set", f"export {variable}=...")


def reach_check(url: str) -> Check:
    """Whether something listens there; `agentbench backend check` asks it for more."""
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    place = f"{address[0]}:{address[1]}"
    try:
        socket.create_connection(address, timeout=PATIENCE).close()
    except OSError as error:
        return missing("server", f"nobody answers at {place}: {error.strerror or error}", "start it, or correct `url`")
    return ok("server", f"something listens at {place}")
