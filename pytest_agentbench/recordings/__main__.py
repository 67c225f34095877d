"""Starts the server of a recording: `python -m pytest_agentbench.recordings`, with settings on stdin or as an argument of JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.web_process import run_service, serve
from pytest_agentbench.lib.wire import raise_limit
from pytest_agentbench.recordings.recording import Recording
from pytest_agentbench.recordings.server import Player

WHERE = "settings of a recording's server"


async def player(settings: Any) -> None:
    raise_limit()
    recording = Recording(Path(settings["recording"]))
    facts = {name: settings[name] for name in ("pace", "command", "run") if name in settings}
    await serve(
        Player(recording, settings["model"], **facts).application(),
        WHERE,
        "127.0.0.1",
        settings.get("port", 0),
        reuse_port=settings.get("held", False),
    )


if __name__ == "__main__":
    sys.exit(run_service(WHERE, player))
