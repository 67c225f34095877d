"""What a forked process prints, read from a pipe by the process that forked it, so that neither memory nor a disk can be filled with it."""

from __future__ import annotations

import codecs
import os
from contextlib import suppress

from pytest_agentbench.lib.capture import LOG_LIMIT, Log

CHUNK = 1 << 16  # bytes
REST = 16  # chunks that are read after the end of a process, which are more than a pipe holds


class PrintedOutput:
    """One end of the pipe, and what is kept: half of a rollout's log, for other things are logged as well."""

    def __init__(self, pipe: int) -> None:
        """`pipe` is a descriptor that does not block."""
        self._pipe = pipe
        self._log = Log(LOG_LIMIT // 2)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    @classmethod
    def through_pipe(cls) -> tuple[PrintedOutput, int]:
        """(the reading side, the descriptor that is to be written to)."""
        pipe, other = os.pipe()
        os.set_blocking(pipe, False)
        return cls(pipe), other

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> bool:
        """Takes a chunk; whether there can be more. Raises BlockingIOError when there is none yet."""
        data = os.read(self._pipe, CHUNK)
        self._log.write(self._decode(data, not data))
        return bool(data)

    def end(self) -> str:
        """Takes the rest, though somebody may go on writing, and closes the pipe; what is kept."""
        with suppress(BlockingIOError):
            for _ in range(REST):
                self.read()
        os.close(self._pipe)
        return self._log.text
