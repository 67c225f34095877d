"""Content codings of HTTP that the tap can read, decoded as the bytes come (RFC 9110, 8.4.1)."""

from __future__ import annotations

import zlib
from typing import Protocol


class Decoder(Protocol):
    """Decodes one body."""

    @property
    def has_more(self) -> bool:
        """Whether there is more in what it got."""
        ...

    def decode(self, data: bytes, most: int) -> bytes:
        """What these bytes add, and those before; raises ValueError for what is not of the coding.

        Of what it has to unpack `most` bytes; the rest is had with no further data.
        """
        ...

    def end(self) -> None:
        """Raises ValueError for a body that was cut."""
        ...


class Identity:
    """A body without a coding."""

    has_more = False

    def decode(self, data: bytes, most: int) -> bytes:  # noqa: ARG002 - nothing is unpacked
        return data

    def end(self) -> None:
        pass


class Inflate:
    """A gzip or deflate body. One without a single byte is empty, not cut."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._waiting = b""  # not unpacked yet
        self._inflater: zlib._Decompress | None = None
        self.has_more = False

    def decode(self, data: bytes, most: int) -> bytes:
        pieces, room = [], most
        self._waiting += data
        while (self._waiting or self.has_more) and room:
            if self._inflater is None and self._coding == "deflate" and len(self._waiting) < 2:
                break  # the second byte tells its form
            inflater = self._inflater = self._inflater or zlib.decompressobj(_window_bits(self._coding, self._waiting))
            try:
                pieces.append(inflater.decompress(self._waiting, room))
            except zlib.error as error:
                raise ValueError(f"the body is not {self._coding}: {error}") from error
            room -= len(pieces[-1])
            self._waiting = inflater.unconsumed_tail or inflater.unused_data
            self.has_more = not room and not inflater.eof
            if inflater.eof and self._waiting and self._coding == "deflate":
                raise ValueError("something stands behind the deflate body")
            if inflater.eof and self._waiting:  # a gzip body may have several members
                self._inflater, self.has_more = None, not room
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
