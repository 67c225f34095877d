"""Content codings, decoded as the data arrives."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_agentbench.tap.stream import Decoder, decoder


def bare(data: bytes) -> bytes:
    """Returns deflate data without a zlib header, as some servers send it."""
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def members(data: bytes) -> bytes:
    return gzip.compress(data[:3], mtime=0) + gzip.compress(data[3:], mtime=0)


ALL = 1 << 20  # more than any data in this file

CODINGS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "none": (b"", bytes),
    "identity": (b" Identity", bytes),
    "gzip": (b"gzip", gzip.compress),
    "members": (b"gzip", members),
    "x-gzip": (b"X-GZIP, identity", gzip.compress),
    "deflate": (b"deflate", zlib.compress),
    "bare deflate": (b"deflate", bare),
}


def known(content_encoding: bytes) -> Decoder:
    found = decoder(content_encoding)
    assert found is not None
    return found


@given(data=st.binary(max_size=200), name=st.sampled_from([*CODINGS]), size=st.integers(1, 30))
@example(data=b"data", name="deflate", size=1)
def test_cut_anywhere(data: bytes, name: str, size: int) -> None:
    """Each coding returns the original data, wherever the reads end."""
    content_encoding, encode = CODINGS[name]
    body, found = encode(data), known(content_encoding)

    pieces = [found.decode(body[place : place + size], ALL) for place in range(0, len(body), size)]
    found.end()

    assert data == b"".join(pieces)


def test_flushed_data_is_decoded_at_once() -> None:
    """Data that the server has flushed is decoded before the body ends."""
    deflater, found = zlib.compressobj(wbits=zlib.MAX_WBITS + 16), known(b"gzip")

    for each in (b"data: a\n\n", b"data: b\n\n"):
        assert each == found.decode(deflater.compress(each) + deflater.flush(zlib.Z_SYNC_FLUSH), ALL)


@given(data=st.binary(max_size=300), name=st.sampled_from(["gzip", "members", "deflate", "bare deflate"]), most=st.integers(1, 40))
def test_in_slices(data: bytes, name: str, most: int) -> None:
    """At most the requested size is decoded at once, and nothing is lost between two slices."""
    content_encoding, encode = CODINGS[name]
    found = known(content_encoding)
    pieces = [found.decode(encode(data), most)]
    while found.has_more:
        pieces.append(found.decode(b"", most))
    found.end()

    assert all(len(piece) <= most for piece in pieces)
    assert data == b"".join(pieces)


def test_a_bomb_is_not_unpacked_at_once() -> None:
    """If 200 kB decompress to 200 MB, only one slice is decoded at a time."""
    found = known(b"gzip")

    assert bytes(1000) == found.decode(gzip.compress(bytes(200_000_000), compresslevel=9), 1000)
    assert found.has_more


@given(data=st.binary(min_size=1, max_size=50), name=st.sampled_from(["gzip", "deflate", "bare deflate"]), place=st.integers(1, 200))
def test_cut_bodies(data: bytes, name: str, place: int) -> None:
    """A truncated body is an error. A body without any bytes is empty."""
    content_encoding, encode = CODINGS[name]
    body, found, empty = encode(data), known(content_encoding), known(content_encoding)
    found.decode(body[: 1 + place % (len(body) - 1)], ALL)

    with pytest.raises(ValueError, match=rf"the {content_encoding.decode()} body is truncated"):
        found.end()
    empty.end()


@pytest.mark.parametrize(
    ("content_encoding", "body", "sentence"),
    [
        (b"gzip", b"data: {}\n\n", "the body is not gzip: Error -3"),
        (b"gzip", gzip.compress(b"data", mtime=0)[:-8] + bytes(8), "the body is not gzip: Error -3 .* incorrect data check"),
        (b"gzip", gzip.compress(b"data", mtime=0) + b"more", "the body is not gzip: Error -3"),
        (b"deflate", b"\xff\xff\xff\xff", "the body is not deflate: Error -3"),
        (b"deflate", zlib.compress(b"data") + b"more", "unexpected data after the deflate body"),
    ],
)
def test_broken_bodies(content_encoding: bytes, body: bytes, sentence: str) -> None:
    """Invalid data is an error as soon as it is read."""
    with pytest.raises(ValueError, match=sentence):
        known(content_encoding).decode(body, ALL)


@pytest.mark.parametrize("content_encoding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"deflate, gzip", b"x"])
def test_codings_that_are_not_known(content_encoding: bytes) -> None:
    """Unknown codings have no decoder."""
    assert decoder(content_encoding) is None
