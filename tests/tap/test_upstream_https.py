"""A backend with TLS."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

from tests.certificates import needs_openssl
from tests.tap.peers import CHAT, Message, Tap, agent, answering, backend, request, said, until


@needs_openssl
async def test_calls_over_tls(tap: Tap, certificates: Path, tls: ssl.SSLContext) -> None:
    """With the authority's certificate, calls are forwarded and timed as without TLS.

    The send time of a large request is when it is complete.
    """
    id = await tap.open()
    bodies = [json.dumps({**CHAT, "user": "x" * size}).encode() for size in (1, 5_000_000, 1)]
    async with backend(answering(said()), ssl=tls) as url, agent(tap.port) as caller:
        await tap.point_at(url + "/v1", ca_file=str(certificates / "ca.pem"))
        got = [(await caller.ask(request(id, body=body))).status for body in bodies]
    calls = await tap.close(id)

    assert [200] * 3 == got
    assert [None] * 3 == [call.error_kind for call in calls]
    for call in calls:
        assert call.sent_ns is not None
        stamps = [call.received_ns, call.sent_ns, *(chunk.at_ns for chunk in call.chunks), call.ended_ns]
        assert sorted(stamps) == stamps


@needs_openssl
async def test_an_agent_that_leaves_while_the_tap_connects(tap: Tap, certificates: Path, tls: ssl.SSLContext) -> None:
    """If the agent disconnects while the tap connects, nothing is sent, and the next call uses the connection."""
    id = await tap.open()
    requests: list[Message] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await tap.point_at(f"https://127.0.0.1:{listener.getsockname()[1]}", ca_file=str(certificates / "ca.pem"))
        async with agent(tap.port) as leaving, agent(tap.port) as caller:
            await leaving.send(request(id))
            await until(tap.in_flight, "the call that will be given up")
            leaving.reset()
            await until(tap.is_idle, "its end")
            async with backend(answering(said(), requests=requests), sock=listener, ssl=tls):
                answer = await caller.ask(request(id))

    assert (200, 1) == (answer.status, len(requests))
    assert ["client_gone", None] == [call.error_kind for call in await tap.close(id)]


@needs_openssl
async def test_an_unknown_certificate_authority(tap: Tap, tls: ssl.SSLContext) -> None:
    """A server with an unknown certificate authority gets no call. The agent gets a 502, and the record says how to add the authority."""
    id = await tap.open()
    async with backend(answering(said()), ssl=tls) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        unknown = await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert (502, "connect") == (unknown.status, unknown.json["error"]["code"])
    assert call.error.startswith("no connection to 127.0.0.1:")
    assert "the server's certificate is not trusted" in call.error
    assert "`ca_file`" in call.error


@needs_openssl
async def test_another_name(tap: Tap, certificates: Path, tls: ssl.SSLContext) -> None:
    """A certificate for another host is refused."""
    id = await tap.open()
    async with backend(answering(said()), ssl=tls) as url, agent(tap.port) as caller:
        await tap.point_at(url.replace("127.0.0.1", "localhost"), ca_file=str(certificates / "ca.pem"))
        answer = await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert (502, "connect") == (answer.status, answer.json["error"]["code"])
    assert "the server's certificate is not for localhost" in call.error


@needs_openssl
async def test_no_tls_at_the_other_end(tap: Tap) -> None:
    """A server without TLS is a failed connection."""
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url.replace("http:", "https:"))
        answer = await caller.ask(request(id))

    assert (502, "connect") == (answer.status, answer.json["error"]["code"])
    assert "the server does not speak TLS" in answer.json["error"]["message"]
