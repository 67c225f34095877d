"""What Dynamo's frontend writes down of every request: the worker and the times that answers to requests with tools lack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import orjson

from pytest_agentbench.lib.appended_file import AppendedFile
from pytest_agentbench.records import Json

PATIENCE = 1.0  # seconds that the line of a request may come after its answer
POLL = 0.01  # seconds

#: Times under the names that answers have, and the trace's own.
TIMING = {
    **{
        name: name for name in ("request_received_ms", "prefill_wait_time_ms", "prefill_time_ms", "ttft_ms", "total_time_ms", "kv_hit_rate")
    },
    "router_queue_depth": "queue_depth",
}


class RequestTrace:
    """A file of JSON lines (`dynamo.request.trace.v1`) that grows. What is in it from before is passed over."""

    def __init__(self, file: Path, prefix: str) -> None:
        """`prefix` is how the sessions begin that are asked for."""
        self.sessions: set[str] = set()  # that requests have named
        self._file, self._prefix = AppendedFile(file), prefix
        self._requests: dict[str, Json] = {}  # id -> what is told of it; until somebody asks

    async def complete(self, id: str, calls: Sequence[Json]) -> bool:
        """Gives calls whose answers said nothing what is told of them; whether their lines came in time."""
        del id  # a line names its request
        silent = {str(call["response_id"]): call for call in calls if "-" in (call["response_id"] or "") and call["server"] is None}
        came = await self.wait(silent)
        for response_id, call in silent.items():
            call["server"] = self.take(response_id)
        return came

    def take(self, response_id: str) -> Json | None:
        """What is told of the request with this answer, once. A request is called as its answer is, without what stands before it."""
        return self._requests.pop(response_id.partition("-")[2], None)

    def look(self) -> None:
        """Reads the lines that are new and whole."""
        for line in self._file.new_lines():
            self._keep(orjson.loads(line)["event"])

    async def wait(self, response_ids: Collection[str]) -> bool:
        """Looks until the lines of all these answers are there; whether they came in time."""
        ids, end = {id.partition("-")[2] for id in response_ids}, time.monotonic() + PATIENCE
        self.look()
        while not ids <= self._requests.keys() and time.monotonic() < end:
            await asyncio.sleep(POLL)
            self.look()
        return ids <= self._requests.keys()

    def _keep(self, event: Json) -> None:
        session, request = (event.get("agent_context") or {}).get("session_id", ""), event.get("request")
        if request is None or not session.startswith(self._prefix):
            return
        self.sessions.add(session)
        timing = {name: request[own] for name, own in TIMING.items() if request.get(own) is not None}
        self._requests[request["request_id"]] = {"worker_id": request.get("worker"), "timing": timing}
