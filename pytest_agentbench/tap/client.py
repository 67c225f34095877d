"""The pool's lines to the control ports of the session's taps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.messages import Hello
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.routing_hints import NO_LABEL, Label


class TapControl:
    """Asks the tap in frames; replies come in the order of the questions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._asked: deque[asyncio.Future[dict[str, Any]]] = deque()  # also those whose askers have been cancelled
        self._gone: str | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def connect(cls, port: int, token: str) -> TapControl:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire.pack(Hello(token, "pool")))
        return cls(reader, writer)

    async def ask(self, **question: Any) -> dict[str, Any]:
        """The tap's reply; raises InfraError when the tap is gone or refuses."""
        if self._gone is not None:
            raise InfraError(self._gone)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked.append(reply)
        self._writer.write(wire.pack(question))
        answer = await reply
        if "error" in answer:
            raise InfraError(f"the tap refused {question['op']}: {answer['error']}")
        return answer

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    def close(self) -> None:
        self._listening.cancel()
        self._end("the line to the tap is closed")
        self._writer.close()

    async def _listen(self) -> None:
        try:
            while True:
                answer, _ = await wire.read(self._reader)
                reply = self._asked.popleft()
                if not reply.done():
                    reply.set_result(answer)
        except (EOFError, OSError, ValueError) as error:
            self._end(f"the tap is gone: {error!r}")

    def _end(self, why: str) -> None:
        self._gone = why
        for reply in self._asked:
            if not reply.done():
                reply.set_exception(InfraError(why))
        self._asked.clear()


class Taps:
    """All taps of a session. Each knows every rollout, because the kernel decides which of them gets a connection."""

    def __init__(self, controls: Sequence[TapControl]) -> None:
        self._controls = controls

    @classmethod
    async def connect(cls, ports: Sequence[int], token: str) -> Taps:
        return cls([await TapControl.connect(port, token) for port in ports])

    @property
    def are_gone(self) -> bool:
        """Whether one of them is."""
        return any(control.is_gone for control in self._controls)

    async def point_at(self, endpoint: Endpoint) -> None:
        """Where calls go from now on."""
        await self._ask(op="upstream", **self._upstream(endpoint))

    async def open(
        self,
        id: str,
        upgrade: bool | None,
        label: Label = NO_LABEL,
        *,
        keep: bool = False,
        elsewhere: Endpoint | None = None,
        salt: str = "",
        calls: int | None = None,
        role: str = "",
        limits: Json | None = None,
        prices: Json | None = None,
        account: Json | None = None,
    ) -> None:
        """Lets a rollout call; `upgrade` says whether calls that do not stream travel as streams, None: as each of them asks.

        With `keep` the records of its calls hold what the model said. `elsewhere` is where its calls go instead. `salt` is put before
        their system prompts, and only so many `calls` are relayed. Their records name the `role` in which they are made.
        No call is relayed beyond `limits` of the role, or those of the rollout's `account` {id, limits}; `prices` are of their tokens.
        Raises InfraError for limits where several taps would have to count together.
        """
        if len(self._controls) > 1 and (limits or account):
            raise InfraError("limits of calls, tokens and cost are counted by one tap: leave --agentbench-taps out")
        more = {"keep": keep, "salt": salt, "calls": calls, "role": role, "upstream": elsewhere and self._upstream(elsewhere)}
        more |= {"limits": limits, "prices": prices, "account": account}
        await self._ask(op="open", id=id, upgrade=upgrade, labels=label.to_dict(), **more)

    async def said(self, id: str) -> list[Json]:
        """What the model said to a rollout opened with `keep` since this was asked last; breaks off calls under way."""
        said = [each for answer in await self._ask(op="said", id=id) for each in answer["said"]]
        return sorted(said, key=lambda each: int(each["received_ns"]))

    async def close(self, id: str) -> list[Json]:
        """Ends a rollout; its calls in the order in which they came."""
        calls = [call for answer in await self._ask(op="close", id=id) for call in answer["calls"]]
        return sorted(calls, key=lambda call: int(call["received_ns"]))

    def _upstream(self, endpoint: Endpoint) -> Json:
        rate = endpoint.requests_per_minute
        each = None if rate is None else rate / len(self._controls)  # nobody but the kernel knows which of them gets a call
        key = {"api_key": endpoint.api_key, "api_key_env": endpoint.api_key_env}
        return {"url": endpoint.url, **key, "ca_file": endpoint.ca_file, "headers": dict(endpoint.headers), "requests_per_minute": each}

    def leave(self) -> None:
        """Closes the lines; the taps go on."""
        for control in self._controls:
            control.close()

    async def _ask(self, **question: Any) -> list[Json]:
        return await asyncio.gather(*(control.ask(**question) for control in self._controls))
