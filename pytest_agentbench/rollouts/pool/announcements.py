"""What stacks are told of rollouts, and what they write about them: labels and releases, and the files in which parts of a stack
trace every request.
"""

from __future__ import annotations

import asyncio
import contextvars
import csv
import ssl
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.file_system import AppendedFile
from pytest_agentbench.lib.json_text import json_object
from pytest_agentbench.records import Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.runs.attempts import RolloutTally
from pytest_agentbench.tap.routing_hints import NO_LABEL, Label, Release, make_labels, new_id, run_prefix

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


TRIES = 3  # of a release, while no connection comes about or holds
SECONDS = 5.0  # that a release may take, all tries together
FAREWELL = 8.0  # seconds that all that is left has at the end of the session

#: Kind of labels -> what reads the file that such a stack writes of calls.
READERS: Mapping[str, type[RequestTrace | StepProfiles]] = {"dynamo": RequestTrace, "thunderagent": StepProfiles}


def total(tallies: Iterable[RolloutTally]) -> RolloutTally:
    """The sum of the tallies of several endpoints."""
    every = [astuple(each) for each in tallies]
    return RolloutTally(*map(sum, zip(*every, strict=True)))


@dataclass
class Announcer:
    """Gives rollouts their labels, and releases them. A release never harms a rollout: what goes wrong is logged and counted."""

    endpoint: Endpoint
    session: aiohttp.ClientSession
    run: str  # of its session; no other one has the same
    on_release: Callable[[str], None] = lambda _id: None  # called with the id of each rollout that the stack has let go
    tally: RolloutTally = field(default_factory=RolloutTally)

    def __post_init__(self) -> None:
        """Raises ConfigError for labels that nobody knows."""
        self._labels = make_labels(self.endpoint.labels)
        self._prefix = run_prefix(self.run)
        self._ids: dict[str, str] = {}  # token of the tap -> id that the stack is to know
        self._seen: set[str] = set()  # ids that it has seen
        reader = READERS.get(str(self.endpoint.labels.get("kind")))
        self._trace = reader(self._labels.trace, self._prefix) if reader and self._labels.trace else None
        self._late: set[str] = set()  # ids with calls that the trace has not told of yet
        self._unreleased: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context(cafile=self.endpoint.ca_file) if self.endpoint.url.startswith("https") else True

    def announce(self, token: str, key: RolloutKey, role: str = "") -> Label:
        """What the calls of a rollout get; those of each role in it are another program, whose id says so."""
        id = new_id(self._prefix, key, role)
        label = self._labels.label(id)
        if label != NO_LABEL:
            self.tally.labelled += 1
            self._ids[token] = id
        if self._release_of(id) is not None:
            self._unreleased.add(id)
        return label

    def adopt(self, token: str, id: str) -> None:
        """A rollout that another pool has announced."""
        self._ids[token] = id
        if self._release_of(id) is not None:
            self._unreleased.add(id)

    def id_of(self, token: str) -> str | None:
        """The id that the stack knows an open rollout by; None where it is not told."""
        return self._ids.get(token)

    async def complete(self, token: str, calls: tuple[LLMCall, ...]) -> tuple[LLMCall, ...]:
        """Returns the calls of a rollout with what their answers did not say and the stack has written down."""
        if self._trace is None or token not in self._ids:
            return calls
        id = self._ids[token]
        calls, came = await self._trace.complete(id, calls)
        if not came:
            log(f"{id}: {self._labels.trace} lacks requests that were answered")
        return calls

    def over(self, token: str, calls: Sequence[LLMCall] = ()) -> bool:
        """A rollout has no call open any more, these were all: tells the stack, in the background. Whether there is anything to tell."""
        if (id := self._ids.pop(token, None)) is None:
            return False
        self._note(id, calls)
        if id not in self._unreleased:
            return False
        task = asyncio.get_running_loop().create_task(self._end(id), context=contextvars.Context())  # not into the rollout's log
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        return True

    def _note(self, id: str, calls: Sequence[LLMCall]) -> None:
        """Whether a rollout has arrived, as far as that is known before its release."""
        if not any(call.sent_ns for call in calls):
            return
        if self._trace is not None:
            self._late.add(id)
            self._note_traced()
        elif not self._labels.confirms_releases and any(call.http_status for call in calls):
            self._saw(id)

    def _note_traced(self) -> None:
        assert self._trace is not None
        self._trace.look()
        for id in self._late & self._trace.sessions:
            self._late.discard(id)
            self._saw(id)

    def _saw(self, id: str) -> None:
        self._seen.add(id)
        self.tally.announced = len(self._seen)

    async def release_all(self) -> None:
        """Waits for releases under way, and releases what was not: rollouts that nobody closed, and those that the stack still lists."""
        try:
            async with asyncio.timeout(FAREWELL):
                await asyncio.gather(*self._releasing)
                left = self._unreleased | await self._listed()
                await asyncio.gather(*map(self._released, left))
        except TimeoutError:
            log(f"the stack took longer than {FAREWELL:g} s to release what was left")
        if self._trace is not None:
            self._note_traced()
        self.tally.left = len(self._unreleased)
        if self._unreleased:
            log(f"{self.tally.left} rollouts are not released, among them {min(self._unreleased)}")

    def _release_of(self, id: str) -> Release | None:
        return self._labels.release(self.endpoint.url, self.endpoint.model, id)

    async def _end(self, id: str) -> None:
        self.tally.failed += not await self._released(id)

    async def _released(self, id: str) -> bool:
        """Whether the stack took a release."""
        release = self._release_of(id)
        assert release is not None
        self._unreleased.add(id)
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._asked("POST", release.url, json=release.body, headers=release.headers)
        except TimeoutError:
            log(f"{id} is not released: no answer within {SECONDS:g} s")
            return False
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log(f"{id} is not released: {error}")
            return False
        self._unreleased.discard(id)
        self.tally.released += 1
        if self._labels.confirms(answer):
            self._saw(id)
        if self._labels.bypassed(answer):
            self.tally.bypassed += 1
            log(f"the release of {id} was answered with text: calls do not pass the router that `labels: {{release: true}}` speaks of")
        self.on_release(id)
        return True

    async def _listed(self) -> set[str]:
        """Rollouts of this run that the stack still knows, where it lists them."""
        url = self._labels.listing(self.endpoint.url)
        if url is None or not self.tally.labelled:
            return set()
        try:
            async with asyncio.timeout(SECONDS):
                return {id for id in await self._asked("GET", url) if id.startswith(self._prefix)}
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            log(f"the stack does not list its rollouts: {error!r}")
            return set()

    async def _asked(self, method: str, url: str, headers: Mapping[str, str] = NO_LABEL.headers, **body: Json) -> Json:
        """The object that the stack answers with 200; raises aiohttp.ClientError or ValueError for all else."""
        key = {"authorization": f"Bearer {self.endpoint.api_key}"} if self.endpoint.api_key else {}
        sent = {**self.endpoint.headers, **key, **headers}
        for _ in range(TRIES - 1):
            with suppress(aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                return await self._answer(method, url, headers=sent, **body)
        return await self._answer(method, url, headers=sent, **body)

    async def _answer(self, method: str, url: str, **more: Any) -> Json:
        async with self.session.request(method, url, ssl=self._tls, **more) as answer:
            text = await answer.text()
        content = json_object(text.encode()) if answer.status == 200 else None
        if content is None:
            raise ValueError(f"{method} {url} answered {answer.status}: {beginning(text, 200)}")
        return content


def log(line: str) -> None:
    sys.stderr.write(f"labels: {line}\n")
    sys.stderr.flush()
