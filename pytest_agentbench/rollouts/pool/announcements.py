"""The stack's view of a session: which rollouts it was told of, and that each of them is over."""

from __future__ import annotations

import asyncio
import contextvars
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any

import aiohttp

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.json_text import json_object
from pytest_agentbench.records import Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool.traces import RequestTrace, StepProfiles
from pytest_agentbench.runs.attempts import RolloutTally
from pytest_agentbench.tap.routing_hints import NO_LABEL, Label, Release, make_labels, new_id, run_prefix

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
        elif not self._labels.tells and any(call.http_status for call in calls):
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
        if self._labels.knew(answer):
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
