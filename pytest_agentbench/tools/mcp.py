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
    """Options: see docs/mcp.md."""

    own_code: ClassVar[bool] = True

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> ServerTools:
        """Asks the server for its tools. A server with a command is started for that."""
        try:
            from pytest_agentbench.tools.mcp_tools import ServerTools
        except ImportError as error:
            raise ConfigError(f"{INSTALL} ({error})") from error
        tools = ServerTools.of(self, folder)
        tools.check(scenarios)
        return tools
