"""Imports the client of the Hugging Face hub, an optional dependency, and converts its errors to messages of one line."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.cut_marks import beginning

#: Base classes of the client's errors if there is no network, or if it is configured to be offline.
_UNREACHABLE = {"RequestError", "ConnectionError", "Timeout", "LocalEntryNotFoundError"}


def optional(module: str) -> Any:
    """Imports a module that is installed with `pytest-agentbench[hub]`. If it is missing, raises ConfigError with the command for pip."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module.partition('.')[0]} is not installed: pip install 'pytest-agentbench[hub]'") from error


@contextmanager
def one_line_errors(repository: str, revision: str) -> Iterator[None]:
    """Converts refusals of the hub and network errors to an AgentbenchError. Other errors, such as a full disk, pass through."""
    try:
        yield
    except Exception as error:
        names = {each.__name__ for each in type(error).__mro__}  # Compared by name, because the client uses requests, httpx or httpx2.
        if not names & {*_UNREACHABLE, "HfHubHTTPError"}:
            raise
        host = optional("huggingface_hub").constants.ENDPOINT
        what = "is unreachable, so it cannot provide" if names & _UNREACHABLE else "refuses"
        reason = beginning(" ".join(str(error).split()), 300)
        raise AgentbenchError(f"{host} {what} {repository} at revision {revision}: {type(error).__name__}: {reason}") from error
