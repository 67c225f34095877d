"""One request on its way: what is asked of the backend, what comes back to the agent, and the record of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap import jsontext
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.dialects.reading import Reading, error_message
from pytest_agentbench.tap.heads import JSON_TYPE, Headers, end_to_end, error_body, header
from pytest_agentbench.tap.stream import EventReader, Read

if TYPE_CHECKING:
    from pytest_agentbench.tap.agents import AgentConnection

CALLED = b"x-agentbench-called-ns"
REPLACED = frozenset({b"content-type", b"content-length"})  # headers of a stream that do not fit the answer made from it


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
    def is_call(self) -> bool:
        return self.method == b"POST" and self.route in DIALECTS

    @property
    def called_ns(self) -> int | None:
        """When the agent made the call, if it says so and can be believed."""
        called = header(self.headers, CALLED)
        return int(called) if called.isdigit() and len(called) < 20 and int(called) <= self.received_ns else None


class Exchange:
    """A request, from its last byte at the tap to the last byte of its answer."""

    def __init__(self, agent: AgentConnection, request: Request) -> None:
        self.agent, self.request = agent, request
        self.dialect = DIALECTS[request.route] if request.is_call else None
        asked = jsontext.json_object(request.body) or {} if request.is_call else {}
        self.model = str(asked.get("model") or "")
        self.streamed = bool(asked.get("stream"))
        stream = self.dialect.as_stream(asked) if self.dialect and asked else None
        self.upgraded = stream is not None
        self.body = request.body if stream is None else stream  # what the backend gets
        self.sent_ns: int | None = None
        self.status: int | None = None
        self.headers: Headers = []
        self.reads: list[Read] = []  # bodies, without chunked framing
        self.over = False
        self.record: LLMCall | None = None

    # -------------------------------------------------------------------------------- what the upstream connection reports

    def sent(self) -> None:
        if self.status is None:  # of a request that was answered before it was whole, there is no such time
            self.sent_ns = time.monotonic_ns()

    def headers_arrived(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        if not self.upgraded:
            self.agent.start_answer(status, headers)

    def body_arrived(self, at_ns: int, data: bytes) -> None:
        if self.request.is_call:
            self.reads.append(Read(at_ns, None, data))
        if not self.upgraded:
            self.agent.pass_on(data)

    def completed(self) -> None:
        """The answer is whole."""
        if not self.over:
            self._end(time.monotonic_ns())

    def failed(self, kind: str, message: str) -> None:
        """There is no answer, or only a part of one; `client_gone` means that nobody waits for it either."""
        if not self.over:
            self._end(time.monotonic_ns(), kind, message)

    # -------------------------------------------------------------------------------- the end

    def _end(self, ended: int, broken: str | None = None, message: str = "") -> None:
        """Reads what came, keeps the record of it, and gives the agent what it does not have yet."""
        self.over = True
        body = b"".join(data for _, _, data in self.reads)
        answer = self._read(body)
        whole = answer.assemble() if self.upgraded and answer.chunks and not answer.error_kind else body
        said_all = answer.done and answer.error_kind is None
        # An SDK that closes its connection at [DONE] has not left early, and a backend that does has said all it had to say.
        kind, message = (broken, message) if broken and not said_all else self._fault(answer, body)
        self.record = self._record(ended, answer, kind, message)
        if self.upgraded and broken != "client_gone":
            self._answer_whole(whole, kind, message, assembled=bool(answer.chunks))
        elif broken != "client_gone":
            self._end_answer(broken, message, said_all)
        self.agent.exchange_ended(self)
        self.reads, self.request.body, self.body = [], b"", b""  # the record stays, for as long as the rollout runs

    def _read(self, body: bytes) -> Reading:
        """What the backend said, as far as it came."""
        if self.dialect is None or self.status != 200:
            return Reading()
        reading = self.dialect()
        if header(self.headers, b"content-type").lower().startswith(b"text/event-stream"):
            for event in EventReader().feed(self.reads):
                reading.add(event)
            reading.end()
        elif body:
            reading.whole(body)
        return reading

    def _fault(self, answer: Reading, body: bytes) -> tuple[str | None, str]:
        """What is wrong with an answer that came whole."""
        if not self.request.is_call:
            return None, ""
        if self.status != 200:
            return "http_status", f"HTTP {self.status}: {_said(body)}"
        if not body:
            return "empty", "the answer has no body"
        return answer.error_kind, answer.error

    def _answer_whole(self, whole: bytes, kind: str | None, message: str, assembled: bool) -> None:
        """What an agent gets that waits for a whole answer: that, or why there is none."""
        if kind is None and assembled:
            self.agent.answer(200, whole, [JSON_TYPE, *end_to_end(self.headers, REPLACED)])
        elif kind in (None, "http_status") and self.status is not None:
            self.agent.answer(self.status, whole, end_to_end(self.headers, frozenset({b"content-length"})))
        else:
            self.agent.answer(502, error_body(message, kind))

    def _end_answer(self, broken: str | None, message: str, said_all: bool) -> None:
        """The end of an answer that was passed on as it came."""
        if not broken:
            self.agent.end_answer()
        elif self.status is None:
            self.agent.answer(502, error_body(message, broken))
        else:
            self.agent.cut_answer(said_all)

    def _record(self, ended: int, answer: Reading, kind: str | None, message: str) -> LLMCall:
        return LLMCall(
            received_ns=self.request.received_ns,
            sent_ns=self.sent_ns,
            ended_ns=ended,
            chunks=tuple(answer.chunks),
            called_ns=self.request.called_ns,
            dialect=self.dialect.name if self.dialect else "",
            streamed=self.streamed,
            upgraded=self.upgraded,
            model=self.model,
            http_status=self.status,
            request_bytes=len(self.request.body),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=answer.cached_tokens,
            token_source=answer.token_source,
            finish_reason=answer.finish_reason,
            error_kind=kind,
            error=message,
        )


def _said(body: bytes) -> str:
    data = jsontext.json_object(body)
    return body[:300].decode(errors="replace") if data is None else error_message(data)
