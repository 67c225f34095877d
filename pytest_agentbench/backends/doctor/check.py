"""`Check`, the result of one check of `agentbench doctor`, and the checks that all kinds of backends share."""

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
    """The result of checking whether this machine has one thing that a backend needs."""

    name: str
    state: Literal["ok", "missing", "unknown", "absent"]
    detail: str
    fix: str = ""  # advice if the state is not `ok`; for `absent`, the backends that need the thing


def ok(name: str, detail: str) -> Check:
    return Check(name, "ok", detail)


def missing(name: str, detail: str, fix: str) -> Check:
    return Check(name, "missing", detail, fix)


def unknown(name: str, detail: str, fix: str = "") -> Check:
    return Check(name, "unknown", detail, fix)


def absent(name: str, detail: str, need: str) -> Check:
    """Returns the result for a thing that this machine lacks, but that only some backends need. `need` says which."""
    return Check(name, "absent", detail, need)


PATIENCE = 3.0  # seconds for a connection to a server
SPACE_GB = 1.0  # free GB of the disk that logs and reports should have


def port_checks(ports: Sequence[int]) -> Iterator[Check]:
    """Checks that the ports of a YAML are free. 0 stands for any free port and needs no check."""
    for port in sorted({*ports} - {0}):
        if is_free(port):
            yield ok(f"port {port}", "free")
        else:
            yield missing(f"port {port}", f"used by {holder(port)}", "end it, or remove the port from the YAML to get a free one")


def disk_check() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < SPACE_GB:
        return missing("disk", f"{free:.1f} GB free here, for logs and reports", "free some, or see --agentbench-reports")
    return ok("disk", f"{free:.1f} GB free here, for logs and reports")


def key_checks(variable: str | None) -> Iterator[Check]:
    """Checks that the environment variable with a server's key is set, if the server needs a key."""
    if variable is None:
        return
    if os.environ.get(variable, "").strip():
        yield ok("key", f"{variable} is set")
    else:
        yield missing("key", f"{variable} is not set", f"export {variable}=...")


def reach_check(url: str) -> Check:
    """Checks that a server listens at a URL. `agentbench backend check` makes further checks."""
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    place = f"{address[0]}:{address[1]}"
    try:
        socket.create_connection(address, timeout=PATIENCE).close()
    except OSError as error:
        return missing("server", f"no server answers at {place}: {error.strerror or error}", "start it, or correct `url`")
    return ok("server", f"a server listens at {place}")
