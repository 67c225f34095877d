"""Files in which parts of a stack trace every request: the step profiles of the ThunderAgent router, and the traces of Dynamo's
frontend.
"""

from __future__ import annotations

import asyncio
import csv
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import orjson

from pytest_agentbench.lib.file_system import AppendedFile
from pytest_agentbench.records import Json, LLMCall

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

    async def complete(self, id: str, calls: tuple[LLMCall, ...]) -> tuple[tuple[LLMCall, ...], bool]:
        """Returns the calls, with what is told of those whose answers said nothing, and whether their lines came in time."""
        del id  # a line names its request
        silent = [call.response_id for call in calls if call.response_id and "-" in call.response_id and call.server is None]
        came = await self.wait(silent)
        told = {response_id: self.take(response_id) for response_id in silent}
        return tuple(replace(call, server=call.server or told.get(call.response_id or "")) for call in calls), came

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


STEP_PATIENCE = 1.0  # seconds that the row of a step may come after its answer
STEP_POLL = 0.01  # seconds

#: What `calls[].server` calls a time -> the router's column, in seconds.
TIMES = {"router_queue_ms": "pause_s", "prefill_time_ms": "prefill_s", "decode_time_ms": "decode_s", "tool_call_time_ms": "tool_call_s"}

#: The router's columns in their order, which its file's first line repeats.
COLUMNS = ("program_id", "step_id", "prefill_s", "decode_s", "pause_s", "tool_call_s", "kv_hit_rate", "completed_at")


class StepProfiles:
    """A `step_profiles.csv` that grows. What is in it from before, and programs of other runs, are passed over.

    A row names its program and the number of the step, and not the call: a program's rows are those of its counted answers, in their order.
    """

    def __init__(self, file: Path, prefix: str) -> None:
        """`prefix` is how the programs begin that are asked for."""
        self.sessions: set[str] = set()  # programs that have a row
        self._file, self._prefix = AppendedFile(file), prefix
        self._rows: defaultdict[str, list[Json]] = defaultdict(list)  # program -> what is told of its steps; until somebody asks

    async def complete(self, id: str, calls: tuple[LLMCall, ...]) -> tuple[tuple[LLMCall, ...], bool]:
        """Returns all the calls of a program with what is told of them, and whether rows and counted answers belong together.

        That is so if every counted answer has its row, and every row its answer.
        """
        counted = [place for place, call in enumerate(calls) if call.completion_tokens is not None and call.error_kind is None]
        end = time.monotonic() + STEP_PATIENCE
        self.look()
        while len(self._rows[id]) < len(counted) and time.monotonic() < end:
            await asyncio.sleep(STEP_POLL)
            self.look()
        rows = self._rows.pop(id)
        if len(rows) != len(counted):  # whose row is whose is not known
            return calls, False
        told = dict(zip(sorted(counted, key=lambda place: calls[place].ended_ns), rows, strict=True))
        return tuple(replace(call, server=call.server or told.get(place)) for place, call in enumerate(calls)), True

    def look(self) -> None:
        """Reads the rows that are new and whole."""
        lines = [line.decode(errors="replace") for line in self._file.new_lines()]
        for values in csv.reader(lines):
            self._keep(dict(zip(COLUMNS, values, strict=False)))

    def _keep(self, row: dict[str, str]) -> None:
        program = row.get("program_id", "")
        if program.startswith(self._prefix) and row.keys() == {*COLUMNS}:
            self.sessions.add(program)
            timing: Json = {name: float(row[column]) * 1e3 for name, column in TIMES.items()}
            if row["kv_hit_rate"]:
                timing["kv_hit_rate"] = float(row["kv_hit_rate"])
            self._rows[program].append({"timing": timing})
