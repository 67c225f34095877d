"""The Docker Engine as sandboxes use it: one client for each of them, calls that block beside the loop, errors that are infra errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from pytest_agentbench.backends.stack.docker_engine import connect, speaking
from pytest_agentbench.errors import BackendError, InfraError
from pytest_agentbench.lib.threads import in_thread

P = ParamSpec("P")
T = TypeVar("T")

CONFLICT = 409  # what an engine says of a container that is being removed
ANSWER = 120.0  # seconds that the engine may take for one answer: it starts many containers at a time


def client() -> Any:
    """Of the engine that DOCKER_HOST names; raises InfraError where none answers. To be closed."""
    with infra():
        engine = connect()
    engine.api.timeout = ANSWER
    return engine


@contextmanager
def infra(what: str = "") -> Iterator[None]:
    """Turns what goes wrong between us and an engine into an InfraError that starts with `what`."""
    try:
        with speaking(what):
            yield
    except BackendError as error:
        raise InfraError(str(error)) from error


async def beside(what: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function that speaks to an engine returns; it has a thread of its own."""
    with infra(what):
        result: T = await in_thread(work, *args, **kwargs)
    return result


def remove(container: Any) -> None:
    """With all that runs in it; one that is gone already, or going, is none to speak of."""
    from docker.errors import APIError, NotFound

    with suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:
                raise
