"""Content codings of HTTP that the tap can read, decoded as the bytes come (RFC 9110, 8.4.1)."""

from __future__ import annotations

import zlib
from typing import Protocol


class Decoder(Protocol):
    """Decodes one body."""

    def decode(self, data: bytes) -> bytes:
        """What these bytes add; raises ValueError for what is not of the coding."""
        ...

    def end(self) -> None:
        """Raises ValueError for a body that was cut."""
        ...


class Identity:
    """A body without a coding."""

    def decode(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        pass


class Inflate:
    """A gzip or deflate body. One without a single byte is empty, not cut."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._waiting = b""  # the first byte of a deflate body, whose form the second one tells
        self._inflater: zlib._Decompress | None = None

    def decode(self, data: bytes) -> bytes:
        pieces = []
        data, self._waiting = self._waiting + data, b""
        while data:
            if self._inflater is None and self._coding == "deflate" and len(data) < 2:
                self._waiting = data
                break
            inflater = self._inflater = self._inflater or zlib.decompressobj(_window_bits(self._coding, data))
            try:
                pieces.append(inflater.decompress(data))
            except zlib.error as error:
                raise ValueError(f"the body is not {self._coding}: {error}") from error
            data = inflater.unused_data
            if inflater.eof and data and self._coding == "deflate":
                raise ValueError("something stands behind the deflate body")
            if inflater.eof and data:  # a gzip body may have several members
                self._inflater = None
        return b"".join(pieces)

    def end(self) -> None:
        if self._waiting or (self._inflater is not None and not self._inflater.eof):
            raise ValueError(f"the {self._coding} body is cut")


def decoder(content_encoding: bytes) -> Decoder | None:
    """A decoder for the value of a Content-Encoding header, empty without one; None for codings that the tap cannot read."""
    codings = [coding for part in content_encoding.lower().split(b",") if (coding := part.strip()) not in (b"", b"identity")]
    if not codings:
        return Identity()
    if codings in ([b"gzip"], [b"x-gzip"]):
        return Inflate("gzip")
    return Inflate("deflate") if codings == [b"deflate"] else None


def _window_bits(coding: str, start: bytes) -> int:
    """What `zlib.decompressobj` wants to know. Deflate should have a zlib head, but some servers send it bare (RFC 1950, 2.2)."""
    if coding == "gzip":
        return 16 + zlib.MAX_WBITS
    has_head = start[0] & 0x0F == 8 and int.from_bytes(start[:2]) % 31 == 0
    return zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS
