"""What is wrong with a service that died or is not ready, in sentences to be put behind the one that says so."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pytest_agentbench.backends.machine.ports import holder
from pytest_agentbench.backends.proof.api import Api
from pytest_agentbench.backends.stack.instances import Instance
from pytest_agentbench.backends.stack.log_hints import hint
from pytest_agentbench.backends.stack.ownership import is_marked
from pytest_agentbench.backends.stack.service import ServiceUnit
from pytest_agentbench.backends.stack.spec import HttpCheck
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.log_tail import indented, tail
from pytest_agentbench.lib.process import killed, listener
from pytest_agentbench.records import Endpoint

FULL = 1 << 20  # a disk with fewer bytes free than this is full


def log_of(instance: Instance, code: int | None = None) -> str:
    """The end of its log, what that and its exit code hint at, and whether the log is whole."""
    lines = tail(instance.log)
    known = "".join(f"\nhint: {each}" for each in (hint(lines), killed(code)) if each)
    return f"{known}{_full(instance.log.parent)}\nthe end of {instance.log}:\n{indented(lines)}"


def robbed(instance: Instance, home: Path) -> str:
    """Who else has one of its ports; the processes of the stack itself are marked with `home`."""
    for port in instance.ports.values() if instance.spec.image is None else ():
        if (pid := listener(port)) and not is_marked(pid, str(home)):
            return f"\nits port {port} is taken by {holder(port)}"
    return ""


def lacks(instance: Instance, check: HttpCheck | None) -> str:
    """Why it is not ready yet; nothing when it is. Without a check its image's HEALTHCHECK counts, if there is one."""
    if check is None:
        return _ails(instance.running)
    url = instance.url_of(check.port, check.http)
    try:
        answer = Api(Endpoint(url, "")).get("", timeout=5)
    except BackendError as error:
        return str(error)
    if answer.status != 200:
        return f"GET {url} answered {answer}"
    return "" if re.search(check.says, answer.text) else f"GET {url} does not say {check.says!r}, but {beginning(answer.text, 200)!r}"


def _ails(running: ServiceUnit | None) -> str:
    """What a container's own HEALTHCHECK says against it; nothing of one without, and of a process."""
    health = running.health() if running else None
    return "" if health in (None, "healthy") else f"its HEALTHCHECK says that it is {health}"


def _full(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    return f"\nthe disk of {folder} is full: {free} bytes are free" if free < FULL else ""
