"""A request of an agent, as it came."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pytest_agentbench.tap.dialects import DIALECTS, Dialect
from pytest_agentbench.tap.heads import Headers, header

CALLED = b"x-agentbench-called-ns"
UPGRADE = b"x-agentbench-stream-upgrade"


@dataclass
class Request:
    """A complete request of an agent."""

    method: bytes
    path: str  # behind the token, e.g. /chat/completions?x=1
    headers: Headers
    body: bytes
    received_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    @property
    def dialect(self) -> Dialect | None:
        """Of an LLM call; None of any other request, which is relayed and not recorded."""
        return DIALECTS.get(self.route) if self.method == b"POST" else None

    @property
    def called_ns(self) -> int | None:
        """When the agent made the call, if it says so and can be believed."""
        called = header(self.headers, CALLED)
        return int(called) if called.isdigit() and len(called) < 20 and int(called) <= self.received_ns else None

    def wants_upgrade(self, of_token: bool | None) -> bool:
        """Whether an answer that is to come whole may travel as a stream; what the rollout's token says counts more."""
        return header(self.headers, UPGRADE) == b"yes" if of_token is None else of_token
