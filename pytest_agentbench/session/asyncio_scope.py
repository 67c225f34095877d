"""pytest-asyncio, which we bring along, deprecates that its fixtures' loop scope is unset: of no use to those who did not ask for it.

Where warnings are errors it would end the session. It looks when pytest is configured: until then we answer for those who gave no answer.
Afterwards everything is as they left it, for "unset" has a meaning of its own.
"""

from __future__ import annotations

import pytest

KEY = "asyncio_default_fixture_loop_scope"
UNSET = pytest.StashKey[object]()


def answer(config: pytest.Config) -> None:
    """Called when all plugins of the environment are there."""
    if config.pluginmanager.hasplugin("asyncio") and not (unset := config.getini(KEY)):
        config.stash[UNSET] = unset
        config._inicache[KEY] = "function"  # pytest has no public way to set a value


def take_back(config: pytest.Config) -> None:
    """Called when all others have been configured."""
    if UNSET in config.stash:
        config._inicache[KEY] = config.stash[UNSET]
        del config.stash[UNSET]
