"""One HTTP request of an agent: it is forwarded to the backend, the answer to the agent, and a record of both is made."""

from __future__ import annotations

import time
import zlib
from email.utils import parsedate_to_datetime
from typing import Protocol

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.metrics.blame import context_is_full
from pytest_agentbench.records import NOT_RECORDED, Json, KeptCall, LLMCall, ToldHints
from pytest_agentbench.tap.answers import BackendAnswer
from pytest_agentbench.tap.budgets import BudgetTimer
from pytest_agentbench.tap.conversations import ConversationKeeper
from pytest_agentbench.tap.cpu_turns import FairQueue
from pytest_agentbench.tap.dialects import Dialect
from pytest_agentbench.tap.dialects.reader import AnswerReader, DialectReader, error_message
from pytest_agentbench.tap.http_messages import (
    JSON_TYPE,
    REFUSALS,
    Headers,
    Request,
    end_to_end,
    error_body,
    header,
    holds_broken_arguments,
)
from pytest_agentbench.tap.protocol import Budgets
from pytest_agentbench.tap.stream import NetworkRead, WithoutUsage
from pytest_agentbench.tap.upgrade import BackendBody

#: Headers of a stream that do not apply to the complete answer that is assembled from it.
REPLACED = frozenset({b"content-type", b"content-length", b"content-encoding"})

#: HTTP statuses that have their own kind of fault.
STATUSES = {429: "rate_limited", 503: "overloaded", 529: "overloaded"}

NOT_FOUND = 404
LONGEST_MISS = 1500  # characters of a sentence about a request that a recording does not contain

#: Faults of answers that cannot be read, whatever their status.
UNREADABLE = frozenset({"encoding", "too_large"})

#: Faults that the agent gets as HTTP 504. All others are 502.
TIMEOUTS = frozenset({"timeout_connect", "timeout_first_token", "timeout_idle", "timeout_call"})


class Carrier(Protocol):
    """The connection to the backend on which an exchange (a request and its answer) takes place."""

    @property
    def exchange(self) -> Exchange | None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class CallerConnection(Protocol):
    """The connection of the agent that made a request: the methods with which an exchange answers the request."""

    work_queue: FairQueue
    upstream: Carrier | None  # backend connection of the exchange
    started: bool  # whether the head of the answer has been sent

    @property
    def is_closing(self) -> bool:
        """Whether the agent's connection is closed or closing. Data written to it is lost."""

    def start_answer(self, status: int, headers: Headers) -> None: ...

    def pass_on(self, data: bytes) -> None: ...

    def end_answer(self) -> None: ...

    def end_interrupted_answer(self, is_complete: bool) -> None: ...

    def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None: ...

    def exchange_ended(self, exchange: Exchange) -> None: ...

    def abandon(self) -> None:
        """Aborts the connection and the exchange (the request that is being answered), because the rollout has ended."""


class Exchange:
    """One HTTP request of an agent: forwards it, forwards the answer, enforces time limits, and builds the record of the call.

    The backend connection calls `begins`, `sent`, `headers_arrived`, `body_arrived` (any number of times), then `completed` or `failed`.
    A backend may answer before it has the whole request, so `headers_arrived` can precede `sent`. `failed` can come at any time; after
    `completed` it changes nothing, because the answer is already complete.

    Bytes are forwarded before they are parsed. Normally the answer is forwarded as it arrives. If the agent wanted a complete answer
    but the tap requested a stream (`backend_body.upgraded`), the agent gets nothing until the answer can be assembled.

    When `over` is True, `record` holds the LLMCall, or None if the request was not an LLM call.
    """

    def __init__(
        self,
        agent: CallerConnection,
        request: Request,
        budgets: Budgets,
        labels: Headers,
        keep: bool = False,
        keeper: ConversationKeeper | None = None,
        key_advice: str = "",
    ) -> None:
        self.agent, self.request, self.budgets = agent, request, budgets
        self.key_advice = key_advice  # advice for the error message if the backend rejects the API key
        self.labels = labels  # headers for the backend, except those that the agent sent itself
        self.hints: ToldHints | None = None  # what the labels say about this call, for its record
        self.keep = keep  # whether `output` is set
        self.keeper = keeper  # keeps the request and the reply; None if they are not kept
        self.held_ns = 0  # nanoseconds that a rate limit delayed the request
        self.idle_since_ns: int | None = None  # time of the last data on the connection before this exchange; None on a new one
        self.head_ns: int | None = None  # time at which the head of the answer had arrived, monotonic nanoseconds
        self.repeats = 0  # idle connections that were skipped because the backend had closed them
        self.backend_body = BackendBody(request.body)  # body as sent to the backend
        self.sent_ns: int | None = None
        self.status: int | None = None
        self.headers: Headers = []
        self.answer: BackendAnswer | None = None  # answer to an LLM call, from its headers until the end of the exchange
        self.completed_ns: int | None = None  # time at which the answer was complete, monotonic nanoseconds
        self.over = False
        self.record: LLMCall | None = None
        self.output: Json | None = None  # text and tool calls of a complete answer, as `DialectReader.output`; None without `keep`
        self._usage_filter: WithoutUsage | None = None
        self._timer = BudgetTimer(self, budgets)

    @property
    def streams(self) -> bool:
        """Whether a stream was requested from the backend."""
        return self.backend_body.streamed or self.backend_body.upgraded

    def last_output_ns(self) -> int | None:
        return self.answer.last_output_ns() if self.answer else None

    def begins(self) -> None:
        """Starts the time limit of the call, after any delay by the rate limit and before the request has a backend connection."""
        self._timer.start()

    def sent(self, at_ns: int) -> None:
        """Records when the whole request was sent."""
        if self.status is None:  # A backend that answers before it has the whole request leaves no send time.
            self.sent_ns = at_ns
            self._timer.expect_token(at_ns)

    def headers_arrived(self, status: int, headers: Headers, at_ns: int) -> None:
        self.status, self.headers, self.head_ns = status, headers, at_ns
        if 300 <= status < 400 and status != 304:
            target = header(headers, b"location").decode("latin-1") or "another address"
            self.failed(
                "redirect",
                f"HTTP {status}: the backend redirects to {target}, which the tap does not follow; set that address as the backend's",
            )
            return
        if self.request.dialect is not None:
            self.answer = BackendAnswer(self.request.dialect, status, headers)
        if self.backend_body.hides_usage and status == 200 and not header(headers, b"content-encoding"):
            self._usage_filter = WithoutUsage()
            self.headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        if not self.backend_body.upgraded:
            self.agent.start_answer(status, self.headers)
        if self.sent_ns is None:
            self._timer.expect_token(time.monotonic_ns())

    def body_arrived(self, read: NetworkRead) -> None:
        if not self.backend_body.upgraded:
            data = read.data if self._usage_filter is None else self._usage_filter.feed(read.data)
            if data:
                self.agent.pass_on(data)
        if self.answer is not None:
            self.answer.take(read)
            if self.answer.excess:
                self.failed("too_large", self.answer.excess)

    def completed(self) -> None:
        """Records that the answer is complete, so that later failures are ignored. Then `work_queue` ends the exchange."""
        self.completed_ns = time.monotonic_ns()
        self._timer.stop()
        self.agent.work_queue.take(self._completed)

    def _completed(self) -> None:
        if self.over:
            return
        if self.answer is not None and self.answer.decompress():
            self.agent.work_queue.take(self._completed)
        else:
            self._end()

    def failed(self, kind: str, message: str) -> None:
        """Ends the exchange without a complete answer, unless the answer was complete before.

        `kind` is an error kind of LLMCall. With `client_gone`, the agent has disconnected or its rollout has ended.
        """
        if not self.over:
            self._end(kind, message)

    def _end(self, broken: str | None = None, message: str = "") -> None:
        """Parses the rest of the answer, sends the agent what is missing, and builds the record."""
        self.over = True
        self._timer.stop()
        ended = self.completed_ns or time.monotonic_ns()
        broken = broken if self.completed_ns is None else None
        had_fault = self._has_fault()
        if self.answer is not None:
            self.answer.end(is_complete=broken is None)
        reader: AnswerReader = self.answer.reader if self.answer is not None else AnswerReader()
        is_complete = self._is_complete(reader, broken)
        decided = is_complete or (had_fault and broken == "client_gone")  # An agent may disconnect because of a fault, so the fault counts.
        kind, message = (broken, message) if broken and not decided else self._fault()
        whole = b"" if kind or self.answer is None or not self.backend_body.upgraded else self._assembled(self.answer)
        if not self.agent.is_closing:
            if self.backend_body.upgraded:
                self._send_complete_answer(whole, kind, message, is_refused=broken is None and self.status != 200)
            else:
                self._end_answer(broken, message, is_complete)
        if self.request.dialect is not None:
            if self.keep and kind is None and isinstance(reader, DialectReader):
                self.output = reader.output()
            kept = None
            if self.keeper is not None:
                kept = self.keeper.call(self.request, self.backend_body.original, self._reply(whole, kind))
            self.record = self._record(self.request.dialect, reader, ended, kind, message, kept)
        self.agent.exchange_ended(self)
        # Exchanges are kept until their rollout ends, so release what only this one needed.
        self.answer, self.request.body, self.backend_body = None, b"", self.backend_body._replace(body=b"", original=None)

    def _has_fault(self) -> bool:
        """Returns whether the part of the answer that has arrived has a fault."""
        if self.answer is None:
            return False
        self.answer.parse_pending()
        return self.answer.reader.error_kind is not None

    def _is_complete(self, reader: AnswerReader, broken: str | None) -> bool:
        """Returns whether an interrupted answer counts as complete.

        It does if [DONE] has arrived and no fault was found. If the agent closed the connection, a finish reason is enough, and so is a
        status other than 200.
        """
        if broken == "client_gone" and self.status not in (None, 200):
            return True
        return reader.error_kind is None and (reader.done or (broken == "client_gone" and bool(reader.chunks)))

    def _fault(self) -> tuple[str | None, str]:
        """Returns the kind of fault of a complete answer and a sentence about it, or (None, "") if it has none."""
        if self.answer is None:
            return None, ""
        reader = self.answer.reader
        if self.status == NOT_FOUND and (message := _missing_record(self.answer.body)):
            return NOT_RECORDED, message
        if self.status != 200 and reader.error_kind not in UNREADABLE:
            return self._refusal(self.status or 0, _error_text(self.answer.body))
        return reader.error_kind, f"HTTP {self.status}: {reader.error}" if reader.error_kind else ""

    def _refusal(self, status: int, message: str) -> tuple[str, str]:
        """Returns the kind of fault and a sentence for an answer with a status other than 200."""
        broken = status in REFUSALS and not context_is_full(status, message) and holds_broken_arguments(self.request.body)
        advice = f"; {self.key_advice}" if self.key_advice and status in (401, 403) else ""
        return "bad_history" if broken else _status_kind(status), f"HTTP {status}: {message}{advice}"

    def _assembled(self, answer: BackendAnswer) -> bytes:
        """Returns the answer's body as if it had not been streamed. An answer that the backend did not stream is unchanged."""
        return answer.reader.assemble() if answer.reader.chunks else answer.body

    def _reply(self, whole: bytes, kind: str | None) -> bytes:
        """Returns the JSON text of the complete answer, or of an error response of the backend. Empty if there is neither."""
        if self.answer is None or (kind is not None and self.status in (None, 200)):
            return b""
        if whole or self.answer.reader.chunks:
            return whole or self.answer.reader.assemble()
        try:
            return json_text.dumps(json_text.loads(self.answer.body))
        except ValueError:  # An error response may be any text.
            return json_text.dumps(self.answer.body.decode("utf-8", "replace"))

    def _send_complete_answer(self, whole: bytes, kind: str | None, message: str, is_refused: bool) -> None:
        """Answers an agent that waits for a complete answer: with the answer, the backend's error response, or the tap's own error."""
        headers = end_to_end(self.headers, REPLACED)
        if kind is None:
            self.agent.answer(200, whole, [JSON_TYPE, *headers])
        elif is_refused and self.answer is not None and kind not in UNREADABLE:
            self.agent.answer(self.status or 502, self.answer.body, [*self._content_type(), *headers])
        else:
            self._answer_fault(kind, message)

    def _content_type(self) -> Headers:
        kind = header(self.headers, b"content-type")
        return [(b"content-type", kind)] if kind else []

    def _end_answer(self, broken: str | None, message: str, is_complete: bool) -> None:
        """Ends an answer that was forwarded as it arrived."""
        if self._usage_filter is not None and (rest := self._usage_filter.rest()):
            self.agent.pass_on(rest)
        if not broken:
            self.agent.end_answer()
        elif self.agent.started:
            self.agent.end_interrupted_answer(is_complete)
        else:
            self._answer_fault(broken, message)

    def _answer_fault(self, kind: str, message: str) -> None:
        status = 504 if kind in TIMEOUTS else 502
        self.agent.answer(status, error_body(status, message, kind))

    def _record(self, dialect: Dialect, reader: AnswerReader, ended: int, kind: str | None, message: str, kept: KeptCall | None) -> LLMCall:
        return LLMCall(
            received_ns=self.request.received_ns,
            sent_ns=self.sent_ns,
            ended_ns=ended,
            called_ns=self.request.called_ns,
            dialect=dialect.name,
            streamed=self.backend_body.streamed,
            upgraded=self.backend_body.upgraded,
            model=self.backend_body.model,
            answered_by=reader.model,
            http_status=self.status,
            request_bytes=len(self.request.body),
            request_crc=zlib.crc32(self.request.body),
            error_kind=kind,
            error=message,
            retry_after_s=_retry_after(header(self.headers, b"retry-after")) if self.status != 200 else None,
            stamp="kernel" if reader.chunks and all(chunk.lag_ns is not None for chunk in reader.chunks) else "user",
            chunks=tuple(reader.chunks),
            prompt_tokens=reader.prompt_tokens,
            completion_tokens=reader.completion_tokens,
            cached_tokens=reader.cached_tokens,
            token_source=reader.token_source,
            finish_reason=reader.finish_reason,
            held_ns=self.held_ns,
            head_ns=self.head_ns,
            idle_since_ns=self.idle_since_ns,
            repeats=self.repeats,
            response_id=reader.response_id,
            server=reader.server,
            hints=self.hints,
            speculative=self.backend_body.speculative,
            kept=kept,
        )


def _status_kind(status: int) -> str:
    return STATUSES.get(status, "server_error" if status >= 500 else "http_status")


def _retry_after(value: bytes) -> float | None:
    """Returns the seconds of a Retry-After header, which is a number or a date (RFC 9110, 10.2.3), or None for anything else."""
    text = value.decode("latin-1").strip()
    try:
        return max(0.0, float(text) if text.replace(".", "", 1).isdecimal() else parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):  # A year that no calendar has raises OverflowError.
        return None


def _missing_record(body: bytes) -> str:
    """Returns the message in the answer of a recording that does not contain the request, or an empty string for any other answer."""
    match json_text.json_object(body):
        case {"error": {"type": type, "message": str(message)}} if type == NOT_RECORDED:
            return beginning(message, LONGEST_MISS)
    return ""


def _error_text(body: bytes) -> str:
    data = json_text.json_object(body)
    return beginning(body, 300) if data is None else error_message(data)
