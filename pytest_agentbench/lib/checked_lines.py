"""Lines of JSON with a checksum, as rollouts.jsonl, attempts.jsonl and messages.jsonl consist of: a changed byte is detected."""

from __future__ import annotations

from zlib import crc32

BEGIN, SEALED = b'{"crc":"', b'",'  # text around the checksum (eight hexadecimal digits) at the start of each line
REST = len(BEGIN) + 8 + len(SEALED)  # offset at which the record continues after the checksum


def sealed(record: bytes) -> bytes:
    """Returns a record with the CRC-32 of its text as its first field, so that every changed byte is detected."""
    return b"%b%08x%b%b" % (BEGIN, crc32(record[1:]), SEALED, record[1:])


def opened(line: bytes) -> bytes:
    """Returns the record of a line (without newline) after checking and removing the checksum. Raises ValueError if it does not match."""
    if line[:REST] != b"%b%08x%b" % (BEGIN, crc32(line[REST:]), SEALED):
        raise ValueError("its checksum does not match")
    return b"{" + line[REST:]
