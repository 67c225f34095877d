"""The Docker Engine of this machine: connecting to it, pulling images, and advice for its errors."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pytest_agentbench.errors import BackendError, MissingError

START = "install Docker and start it (`sudo systemctl start docker`), or set DOCKER_HOST"
ALLOW = "this user may not use Docker: `sudo usermod -aG docker $USER`, then log in again"
TOOLKIT = (
    "containers get GPUs from the NVIDIA Container Toolkit: install nvidia-container-toolkit, "
    "then `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker"
)

#: Pattern of an engine's error -> advice. The first match counts.
HINTS = {
    r"\[Errno \d+\] (No such file or directory|Connection refused)|ConnectionRefusedError": START,
    r"\[Errno \d+\] Permission denied": ALLOW,
    r"select device driver|invalid runtime name|nvidia-container-cli: initialization": TOOLKIT,
    r"unknown device|device error": "`nvidia-smi -L` lists the GPUs of this machine",
    r"docker-init": "every service runs under docker-init: install its package (tini on Debian), and restart Docker",
    r"setting rlimit": "the limits of Docker itself are below `container.ulimits`: raise them in its service (LimitMEMLOCK=infinity, ...)",
    r"no space left": "`docker system df` shows what fills its disk",
    r"denied|unauthorized|authentication|no basic auth": "check the name under `image:`; a private image needs `docker login` "
    "(for nvcr.io as user $oauthtoken, with an NGC API key)",
    r"manifest|not found": "check the name and the tag under `image:`",
    r"no such host|connection refused|timeout|deadline|tls": "its registry cannot be reached from here; "
    "`docker load` imports an image from a file",
}

#: Errors that mean that this machine lacks something.
_LACKING = re.compile("select device driver|invalid runtime name|docker-init", re.IGNORECASE)

_LOCAL = ("localhost", "127.0.0.1", "::1")
_TIMEOUT = 10.0  # seconds for the connection to the socket
_PROGRESS_EVERY = 1.0  # seconds between two progress messages


def connect() -> Any:
    """Connects to the Docker Engine in DOCKER_HOST, or to the default one. The caller has to close the client that is returned.

    Raises MissingError if no engine answers.
    """
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    address = urlsplit(where)
    if address.scheme in ("tcp", "http", "https", "ssh") and address.hostname not in _LOCAL:
        raise MissingError(f"DOCKER_HOST is {where}: containers use the network of their host, so Docker has to run on this machine")
    with as_backend_error(f"no Docker Engine answers at {where}", MissingError):
        if address.scheme == "unix":
            _check_socket(address.path)
        import docker

        return docker.from_env()


def _check_socket(path: str) -> None:
    """Raises OSError if nothing listens at the socket. The client's own error is less clear and leaves a socket open."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT)
        connection.connect(path)


def fetch(image: str, pull: str, on_progress: Callable[[str], None]) -> None:
    """Pulls an image if it is not on this machine. `pull` is `missing` or `never`; with `never`, MissingError is raised instead."""
    engine = connect()
    try:
        with as_backend_error(f"image {image}"):
            if size_of(engine, image) is not None:
                return
            if pull == "never":
                advice = "get it with `docker pull` or `docker load`"
                raise MissingError(f"image {image} is not on this machine, and `pull: never` forbids pulling it; {advice}")
            _pull(engine, image, on_progress)
    finally:
        engine.close()


def size_of(engine: Any, image: str) -> int | None:
    """Returns the size of an image in bytes, or None if it is not on this machine."""
    from docker.errors import ImageNotFound

    try:
        return int(engine.images.get(image).attrs["Size"])
    except ImageNotFound:
        return None


def digest_of(image: str) -> str | None:
    """Returns the registry digest of an image, or the image's id if it is not from a registry, or None if neither is known."""
    try:
        engine = connect()
    except BackendError:
        return None
    try:
        here = engine.images.get(image)
        return str(next(iter(here.attrs.get("RepoDigests") or ()), here.id)).rpartition("@")[2]
    except client_errors():
        return None
    finally:
        engine.close()


def _pull(engine: Any, image: str, on_progress: Callable[[str], None]) -> None:
    layers: dict[str, tuple[int, int]] = {}  # layer -> (downloaded bytes, total bytes)
    started = last = time.monotonic()
    on_progress(f"pulling {image}")
    for event in engine.api.pull(image, stream=True, decode=True):
        if "error" in event:
            raise BackendError(sentence(f"image {image} cannot be pulled", event["error"]))
        _add_progress(layers, event)
        if layers and time.monotonic() - last > _PROGRESS_EVERY:
            last = time.monotonic()
            here, total = (sum(sizes) / 1e6 for sizes in zip(*layers.values(), strict=True))
            on_progress(f"pulling {image}: {here:.0f} of {total:.0f} MB in {last - started:.0f} s")
    on_progress(f"pulled {image} in {time.monotonic() - started:.0f} s")


def _add_progress(layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> None:
    """Notes in `layers` how much of one layer has been downloaded, from an event of a pull.

    Events about unpacking have the same fields as those about downloading. They are ignored.
    """
    detail, layer = event.get("progressDetail") or {}, event.get("id", "")
    if event.get("status") == "Downloading" and "total" in detail:
        layers[layer] = (detail["current"], detail["total"])
    elif event.get("status") in ("Download complete", "Pull complete") and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])


@contextmanager
def as_backend_error(what: str, kind: type[BackendError] = BackendError) -> Iterator[None]:
    """Turns errors of the Docker Engine within the block, or of the connection to it, into a BackendError that begins with `what`."""
    try:
        yield
    except client_errors() as error:
        explanation = getattr(error, "explanation", None) or str(error)
        raise (MissingError if _LACKING.search(explanation) else kind)(sentence(what, explanation)) from error


def client_errors() -> tuple[type[Exception], ...]:
    """Returns the classes of exceptions that the Docker client raises."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    return DockerException, RequestException, HTTPError, OSError


def sentence(what: str, explanation: str) -> str:
    hint = next((hint for pattern, hint in HINTS.items() if re.search(pattern, explanation, re.IGNORECASE)), "")
    return f"{what}: {explanation.strip()}" + (f" ({hint})" if hint else "")
