"""What the ThunderAgent router writes down of every step of a program: how long it held the call, and how fast the engine was."""

from __future__ import annotations

import asyncio
import csv
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from pytest_agentbench.lib.file_system import AppendedFile
from pytest_agentbench.records import Json, LLMCall

PATIENCE = 1.0  # seconds that the row of a step may come after its answer
POLL = 0.01  # seconds

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
        end = time.monotonic() + PATIENCE
        self.look()
        while len(self._rows[id]) < len(counted) and time.monotonic() < end:
            await asyncio.sleep(POLL)
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
