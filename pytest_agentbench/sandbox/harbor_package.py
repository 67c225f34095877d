"""The package `harbor`, which is not always here: asked for before anything of it is imported, and its telemetry kept off."""

from __future__ import annotations

import importlib.util
import os
import sys

from pytest_agentbench.errors import ConfigError

NEEDED = "harbor"
OLDEST = (3, 12)  # Python that it takes

#: Harbor tells its makers what is run, unless this says no. Who has set it keeps what it says.
TELEMETRY = "HARBOR_TELEMETRY"


def check_harbor(what: str) -> None:
    """Raises ConfigError, with what to install, where `what` takes the package and it is not here."""
    os.environ.setdefault(TELEMETRY, "0")
    if importlib.util.find_spec(NEEDED) is not None:
        return
    python = ".".join(map(str, OLDEST))
    here = f"; this is Python {sys.version_info.major}.{sys.version_info.minor}" if sys.version_info < OLDEST else ""
    raise ConfigError(
        f"{what} takes the package `harbor`, which is not installed here: pip install 'pytest-agentbench[harbor]', "
        f"under Python {python} or newer{here}"
    )
