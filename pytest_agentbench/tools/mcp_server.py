"""What a suite says of an MCP server, and what that means on this machine."""

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
    """Options: see docs/mcp.md."""

    # The program of a server that speaks over stdin and stdout, with its arguments; it runs in the suite's folder. A program without a
    # `/` is the one beside the Python that runs pytest, else the one in your `PATH`.
    command: Sequence[str] = ()
    # Instead of a command, the URL of a server that you have started and that serves over streamable HTTP: `http://127.0.0.1:8000/mcp`.
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # The environment variables that the program gets: these and no others.
    # Names of environment variables of yours that it gets as well, for secrets; their values are redacted in all that is written.
    keys: Sequence[str] = ()
    timeout: Annotated[float, number(0.1)] = 60.0  # Seconds that a server has for its start, and for each of its answers.

    def __post_init__(self) -> None:
        check_options(self)
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a url: {kind: mcp, command: [python, server.py]}")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url should be that of an MCP server, such as http://127.0.0.1:8000/mcp, not {self.url!r}")
        if self.url and (self.env or self.keys):
            raise ValueError("env and keys are of a server with a command; one with a url has been started by somebody else")

    @property
    def name(self) -> str:
        """The server in a sentence."""
        return f"the MCP server `{' '.join(self.command) or self.url}`"

    def program_and_arguments(self, folder: Path) -> list[str]:
        """The command with the path of its program, which stands beside this interpreter or in the PATH; raises ConfigError for none."""
        program, *arguments = self.command
        name = str(folder / program) if "/" in program else program
        search_path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        path = shutil.which(name, path=search_path)
        if path is None:
            raise ConfigError(f"there is no program {program!r} in {folder if '/' in program else 'the PATH'}")
        return [path, *arguments]

    def environment(self) -> dict[str, str]:
        """All that the program gets; raises ConfigError for a key that there is not."""
        if missing := [name for name in self.keys if name not in os.environ]:
            raise ConfigError(f"keys: there is no environment variable {missing[0]}, which {self.name} should get")
        return {**{name: os.environ[name] for name in self.keys}, **self.env}
