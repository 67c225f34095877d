"""The settings of an MCP server in suite.yaml. They give the program to start and its environment variables, or a URL."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.options import check_options, number


@dataclass(frozen=True)
class McpServer:
    """The settings of one MCP server. See docs/agents/mcp.md for the keys."""

    # The program of a server that communicates over stdin and stdout, with its arguments. It runs in the suite's folder. A program without
    # a `/` is searched in the folder of the Python that runs pytest, then in your `PATH`.
    command: Sequence[str] = ()
    # Instead of a command, the URL of a running server with streamable HTTP, such as `http://127.0.0.1:8000/mcp`.
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # The environment variables of the program. It gets no others, except `keys`.
    # Names of your environment variables that the program gets, too, for secrets. Their values are redacted in all output.
    keys: Sequence[str] = ()
    timeout: Annotated[float, number(0.1)] = 60.0  # The time limit in seconds for the start of a server, and for each answer.

    def __post_init__(self) -> None:
        check_options(self)
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server needs either a command or a url, for example {kind: mcp, command: [python, server.py]}")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must be that of an MCP server, such as http://127.0.0.1:8000/mcp, not {self.url!r}")
        if self.url and (self.env or self.keys):
            raise ValueError("env and keys need a command; they have no effect on a server with a url, which is already running")

    @property
    def name(self) -> str:
        """The server's description in messages, for example "the MCP server `python server.py`"."""
        return f"the MCP server `{' '.join(self.command) or self.url}`"

    def program_and_arguments(self, folder: Path) -> list[str]:
        """Returns the command with the full path of its program. Raises ConfigError if the program does not exist."""
        program, *arguments = self.command
        name = str(folder / program) if "/" in program else program
        search_path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        path = shutil.which(name, path=search_path)
        if path is None:
            place = folder if "/" in program else "the PATH"
            raise ConfigError(f"there is no program {program!r} in {place}; install it, or correct `command`")
        return [path, *arguments]

    def environment(self) -> dict[str, str]:
        """Returns all environment variables of the program. Raises ConfigError if a variable in `keys` is not set."""
        if missing := [name for name in self.keys if name not in os.environ]:
            raise ConfigError(f"keys: the environment variable {missing[0]}, which {self.name} should get, is not set")
        return {**{name: os.environ[name] for name in self.keys}, **self.env}
