"""Tools of an MCP server: a program that is started for each rollout, or a running server at a URL. Needs the package mcp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.mcp_server import McpServer

if TYPE_CHECKING:
    from pytest_agentbench.tools.mcp_tools import ServerTools

INSTALL = "kind mcp needs the package mcp: pip install 'pytest-agentbench[mcp]'"


@dataclass(frozen=True)
class McpTools(McpServer):
    """The `tools` of suite.yaml with `kind: mcp`: all tools of one MCP server. See docs/agents/mcp.md for the keys."""

    own_code: ClassVar[bool] = True

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> ServerTools:
        """Asks the server for its tools, and checks them against the scenarios. A server with a command is started for that.

        Raises ConfigError if the server has no tools or does not answer, or if its tools differ from those of the scenarios.
        """
        try:
            from pytest_agentbench.tools.mcp_tools import ServerTools
        except ImportError as error:
            raise ConfigError(f"{INSTALL} ({error})") from error
        tools = ServerTools.of(self, folder)
        tools.check(scenarios)
        return tools
