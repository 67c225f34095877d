"""Tells stacks which calls belong to one rollout (labels) and when a rollout has ended (releases).

Also reads the files in which a stack writes facts about each request, and adds them to the calls.
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

PATIENCE = 1.0  # seconds that the line of a request may be later than its answer
POLL = 0.01  # seconds

#: Name of a value in answers -> its name in the trace.
TIMING = {
    **{
        name: name for name in ("request_received_ms", "prefill_wait_time_ms", "prefill_time_ms", "ttft_ms", "total_time_ms", "kv_hit_rate")
    },
    "router_queue_depth": "queue_depth",
}


class RequestTrace:
    """Reads facts about requests from a file to which Dynamo appends JSON lines (`dynamo.request.trace.v1`).

    Ignores lines that were in the file when the instance was made.
    """

    def __init__(self, file: Path, prefix: str) -> None:
        """Takes the file, and the prefix of the ids of this session's rollouts. Requests of others are ignored."""
        self.sessions: set[str] = set()  # sessions that requests have named
        self._file, self._prefix = AppendedFile(file), prefix
        self._requests: dict[str, Json] = {}  # id of a request -> its facts, until `take` removes them

    async def complete(self, id: str, calls: tuple[LLMCall, ...]) -> tuple[tuple[LLMCall, ...], bool]:
        """Adds facts from the file to calls whose answers contained none. Returns the calls, and whether all lines came in time."""
        del id  # Not needed, because each line names its request.
        silent = [call.response_id for call in calls if call.response_id and "-" in call.response_id and call.server is None]
        is_complete = await self.wait(silent)
        facts = {response_id: self.take(response_id) for response_id in silent}
        return tuple(replace(call, server=call.server or facts.get(call.response_id or "")) for call in calls), is_complete

    def take(self, response_id: str) -> Json | None:
        """Removes and returns the facts that the file has about the request of an answer, or None. `response_id` is the answer's id.

        It consists of a prefix and the request's id.
        """
        return self._requests.pop(response_id.partition("-")[2], None)

    def read_new(self) -> None:
        """Reads the complete lines that were appended since the last call."""
        for line in self._file.new_lines():
            self._keep(orjson.loads(line)["event"])

    async def wait(self, response_ids: Collection[str]) -> bool:
        """Waits, PATIENCE seconds at most, for the lines about these answers. Returns whether all of them came."""
        ids, end = {id.partition("-")[2] for id in response_ids}, time.monotonic() + PATIENCE
        self.read_new()
        while not ids <= self._requests.keys() and time.monotonic() < end:
            await asyncio.sleep(POLL)
            self.read_new()
        return ids <= self._requests.keys()

    def _keep(self, event: Json) -> None:
        session, request = (event.get("agent_context") or {}).get("session_id", ""), event.get("request")
        if request is None or not session.startswith(self._prefix):
            return
        self.sessions.add(session)
        timing = {name: request[own] for name, own in TIMING.items() if request.get(own) is not None}
        self._requests[request["request_id"]] = {"worker_id": request.get("worker"), "timing": timing}


STEP_PATIENCE = 1.0  # seconds that the row of a step may be later than its answer
STEP_POLL = 0.01  # seconds

#: Name of a time in `calls[].server` -> the router's column, in seconds.
TIMES = {"router_queue_ms": "pause_s", "prefill_time_ms": "prefill_s", "decode_time_ms": "decode_s", "tool_call_time_ms": "tool_call_s"}

#: The router's columns in their order. The first line of its file repeats them.
COLUMNS = ("program_id", "step_id", "prefill_s", "decode_s", "pause_s", "tool_call_s", "kv_hit_rate", "completed_at")


class StepProfiles:
    """Reads facts about calls from a file to which ThunderAgent appends rows (`step_profiles.csv`).

    Ignores rows that were in the file when the instance was made. A row names its program (the stack's word for a rollout) and the number
    of the step, but not the call. The rows of a program belong to its answers that have a token count, in the order of the answers.
    """

    def __init__(self, file: Path, prefix: str) -> None:
        """Takes the file, and the prefix of the ids of this session's rollouts. Other programs are ignored."""
        self.sessions: set[str] = set()  # programs that have a row
        self._file, self._prefix = AppendedFile(file), prefix
        self._rows: defaultdict[str, list[Json]] = defaultdict(list)  # program -> facts about its steps, until `complete` removes them

    async def complete(self, id: str, calls: tuple[LLMCall, ...]) -> tuple[tuple[LLMCall, ...], bool]:
        """Adds the rows of program `id` to its calls. Returns the calls, and whether each answer with a token count has a row.

        If the numbers of rows and answers differ, no row is used.
        """
        counted = [place for place, call in enumerate(calls) if call.completion_tokens is not None and call.error_kind is None]
        end = time.monotonic() + STEP_PATIENCE
        self.read_new()
        while len(self._rows[id]) < len(counted) and time.monotonic() < end:
            await asyncio.sleep(STEP_POLL)
            self.read_new()
        rows = self._rows.pop(id)
        if len(rows) != len(counted):  # It is unknown which row belongs to which call.
            return calls, False
        facts = dict(zip(sorted(counted, key=lambda place: calls[place].ended_ns), rows, strict=True))
        return tuple(replace(call, server=call.server or facts.get(place)) for place, call in enumerate(calls)), True

    def read_new(self) -> None:
        """Reads the complete rows that were appended since the last call."""
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


TRIES = 3  # requests for one release, if the connection fails
SECONDS = 5.0  # seconds that a release may take, including repeated requests
RELEASE_ALL = 8.0  # seconds for all remaining releases at the end of the session

#: Kind of labels -> reader of the file in which a stack of that kind traces calls.
READERS: Mapping[str, type[RequestTrace | StepProfiles]] = {"dynamo": RequestTrace, "thunderagent": StepProfiles}


def total(tallies: Iterable[RolloutTally]) -> RolloutTally:
    """Adds up counts of labelled and released rollouts: those of several endpoints or pools."""
    every = [astuple(each) for each in tallies]
    return RolloutTally(*map(sum, zip(*every, strict=True)))


@dataclass
class Announcer:
    """Tells the stack at one endpoint which calls belong to a rollout (its label) and when the rollout has ended (its release).

    A release that fails is logged and counted, and never harms its rollout. `token` is the rollout's token at the tap, `id` the one by
    which the stack knows the rollout.
    """

    endpoint: Endpoint
    session: aiohttp.ClientSession
    run: str  # name of the session, different for each session
    on_release: Callable[[str], None] = lambda _id: None  # called with the id of each rollout that the stack has released
    tally: RolloutTally = field(default_factory=RolloutTally)

    def __post_init__(self) -> None:
        """Raises ConfigError if the endpoint's YAML names an unknown kind of labels."""
        self._labels = make_labels(self.endpoint.labels)
        self._prefix = run_prefix(self.run)
        self._ids: dict[str, str] = {}  # token of the tap -> id of the rollout in the stack
        self._arrived: set[str] = set()  # ids that the stack has seen
        reader = READERS.get(str(self.endpoint.labels.get("kind")))
        self._trace = reader(self._labels.trace, self._prefix) if reader and self._labels.trace else None
        self._untraced: set[str] = set()  # ids with calls that the trace does not contain yet
        self._unreleased: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context(cafile=self.endpoint.ca_file) if self.endpoint.url.startswith("https") else True

    def announce(self, token: str, key: RolloutKey, role: str = "") -> Label:
        """Returns the label for the calls of a rollout. For the stack, each role (such as a judge) is a rollout of its own."""
        id = new_id(self._prefix, key, role)
        label = self._labels.of_rollout(id, key, role)
        if label != NO_LABEL:
            self.tally.labelled += 1
            self._ids[token] = id
        if self._release_of(id) is not None:
            self._unreleased.add(id)
        return label

    def adopt(self, token: str, id: str) -> None:
        """Takes over a rollout that an earlier pool has labelled, so that the stack is told when it ends."""
        self._ids[token] = id
        if self._release_of(id) is not None:
            self._unreleased.add(id)

    def id_of(self, token: str) -> str | None:
        """Returns the id of an open rollout in the stack, or None if its calls have no label."""
        return self._ids.get(token)

    async def complete(self, token: str, calls: tuple[LLMCall, ...]) -> tuple[LLMCall, ...]:
        """Adds facts from the stack's file about requests to the calls of a rollout, and returns the calls."""
        if self._trace is None or token not in self._ids:
            return calls
        id = self._ids[token]
        calls, is_complete = await self._trace.complete(id, calls)
        if not is_complete:
            log(f"{id}: {self._labels.trace} lacks requests that were answered, so facts about some calls are missing")
        return calls

    def end(self, token: str, calls: Sequence[LLMCall] = ()) -> bool:
        """Begins to tell the stack, in the background, that a rollout has ended. Returns False if the stack need not be told.

        `calls` are all calls of the rollout; no other call can follow.
        """
        if (id := self._ids.pop(token, None)) is None:
            return False
        self._note(id, calls)
        if id not in self._unreleased:
            return False
        # Its own context keeps the output of the release out of the rollout's log.
        task = asyncio.get_running_loop().create_task(self._release_one(id), context=contextvars.Context())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        return True

    def _note(self, id: str, calls: Sequence[LLMCall]) -> None:
        """Counts a labelled rollout if its calls have reached the stack, as answers or the stack's file about requests show."""
        if not any(call.sent_ns for call in calls):
            return
        if self._trace is not None:
            self._untraced.add(id)
            self._note_traced()
        elif not self._labels.confirms_releases and any(call.http_status for call in calls):
            self._count_arrival(id)

    def _note_traced(self) -> None:
        assert self._trace is not None
        self._trace.read_new()
        for id in self._untraced & self._trace.sessions:
            self._untraced.discard(id)
            self._count_arrival(id)

    def _count_arrival(self, id: str) -> None:
        self._arrived.add(id)
        self.tally.announced = len(self._arrived)

    async def release_all(self) -> None:
        """Waits for releases (messages that a rollout has ended) in progress, and sends those that the stack still lacks.

        These are the releases of rollouts that were not released, and of rollouts that the stack still lists.
        """
        try:
            async with asyncio.timeout(RELEASE_ALL):
                await asyncio.gather(*self._releasing)
                left = self._unreleased | await self._list()
                await asyncio.gather(*map(self._release, left))
        except TimeoutError:
            log(f"the stack took longer than {RELEASE_ALL:g} s to release what was left")
        if self._trace is not None:
            self._note_traced()
        self.tally.left = len(self._unreleased)
        if self._unreleased:
            log(f"{self.tally.left} rollouts are not released, among them {min(self._unreleased)}")

    def _release_of(self, id: str) -> Release | None:
        return self._labels.release(self.endpoint.url, self.endpoint.model, id)

    async def _release_one(self, id: str) -> None:
        self.tally.failed += not await self._release(id)

    async def _release(self, id: str) -> bool:
        """Sends a release (the message that a rollout has ended) to the stack. Returns whether the stack accepted it."""
        release = self._release_of(id)
        assert release is not None
        self._unreleased.add(id)
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._request("POST", release.url, json=release.body, headers=release.headers)
        except TimeoutError:
            log(f"{id} is not released: no answer within {SECONDS:g} s")
            return False
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log(f"{id} is not released: {error}")
            return False
        self._unreleased.discard(id)
        self.tally.released += 1
        if self._labels.confirms(answer):
            self._count_arrival(id)
        if self._labels.bypassed(answer):
            self.tally.bypassed += 1
            log(f"the release of {id} was answered with text: calls do not go through the router that `labels: {{release: true}}` requires")
        self.on_release(id)
        return True

    async def _list(self) -> set[str]:
        """Returns the ids of this session's rollouts that the stack still lists. Empty if the stack cannot list rollouts."""
        url = self._labels.listing(self.endpoint.url)
        if url is None or not self.tally.labelled:
            return set()
        try:
            async with asyncio.timeout(SECONDS):
                return {id for id in await self._request("GET", url) if id.startswith(self._prefix)}
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            log(f"the stack does not list its rollouts: {error!r}")
            return set()

    async def _request(self, method: str, url: str, headers: Mapping[str, str] = NO_LABEL.headers, **body: Json) -> Json:
        """Sends a request, again if the connection fails. Returns the JSON object in the answer.

        Raises ClientError if there is no answer, and ValueError if its status is not 200 or it is not a JSON object.
        """
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
