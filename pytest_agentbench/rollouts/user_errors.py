"""Keeps the exceptions that end agents and scorers, so that a debugger can open where they were raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType

from pytest_agentbench.errors import RolloutError
from pytest_agentbench.lib.error_texts import is_users

AGENT = ""  # The key of the agent's exception; that of a scorer is the name of its score


@dataclass(frozen=True)
class _Keeper:
    errors: dict[str, BaseException]
    endings: tuple[type[BaseException], ...]


_keeper: ContextVar[_Keeper | None] = ContextVar("agentbench_user_errors", default=None)


@contextmanager
def errors_kept(endings: tuple[type[BaseException], ...] = ()) -> Iterator[dict[str, BaseException]]:
    """Keeps the exceptions of one rollout for the `with` block. Used for a rollout in the test's own process.

    An exception of the types `endings` ends the rollout without a record, for example if the user quits a debugger in the agent.
    """
    keeper = _Keeper({}, endings)
    token = _keeper.set(keeper)
    try:
        yield keeper.errors
    finally:
        _keeper.reset(token)


def keep(part: str, error: BaseException) -> None:
    """Keeps the exception of a part of the rollout: AGENT, or the name of a score. Does nothing outside of `errors_kept`."""
    if (keeper := _keeper.get()) is None:
        return
    if isinstance(error, keeper.endings):
        raise error
    keeper.errors[part] = error


def origin(error: BaseException) -> BaseException | None:
    """Returns the exception whose traceback ends in the user's code: `error`, or the one that it was made from. None if there is none."""
    made_from = error.__cause__ if isinstance(error, RolloutError) else None
    inner = origin(made_from) if made_from is not None else None
    return inner or (error if any(map(is_users, _frames(error))) else None)


def hide_packages(error: BaseException) -> None:
    """Marks the frames below the last one of the user, so that pytest's debugger opens there. The command `down` still leads to them."""
    frames = [*_frames(error)]
    while frames and not is_users(frames[-1]):
        frames.pop().f_locals["__tracebackhide__"] = True


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
