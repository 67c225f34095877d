"""The log of a router's decisions: a line of JSON for each call, which can be read back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec


@dataclass(frozen=True)
class LoggedDecision:
    """A decision and the end of its call."""

    at: float  # time of the decision, seconds since 1970
    decision: int  # number of the decision since the router started
    worker: str  # engine that got the call
    previous: str | None  # engine that the session used last, if it is known
    prefix: str  # id of the session; empty if the call belongs to none
    total: int | None  # calls of the session, if the call says it
    reuse: int  # further calls that were expected of the session
    osl: str  # expected length of the answer: LOW, MEDIUM or HIGH
    iat: str  # expected time between calls of the session: LOW, MEDIUM or HIGH
    prompt_tokens: int  # tokens of the prompt, estimated
    overlap: float  # share of the prompt that was expected in the engine's cache, 0 to 1
    gpu: float | None  # share of the engine's KV cache in use, 0 to 1
    queue: float | None  # calls that waited at the engine
    probability: float  # probability of this choice
    scores: Mapping[str, float]  # score of each engine that was alive
    ending: str  # how the call ended: answered, failed, disconnected or unjudged
    status: int | None  # HTTP status of the engine's answer
    latency: float  # seconds from the decision to the end of the answer
    output_tokens: int  # tokens of the answer, 0 if they are not known
    reward: float | None  # reward that was learnt, 0 to 1


class DecisionLog:
    """The open log. Each decision is written when its call ends, so the lines are in the order of the ends."""

    def __init__(self, path: str | None, where: str) -> None:
        """Opens the file, or no file. Raises ConfigError, which names `where`."""
        try:
            self._file = Path(path).open("ab", buffering=0) if path else None  # noqa: SIM115 - `close` closes it
        except OSError as error:
            raise ConfigError(f"{where}: decisions {path!r} cannot be written: {error.strerror}") from None

    def write(self, decision: LoggedDecision) -> None:
        """Appends a line. If that fails, for example because the disk is full, nothing more is logged, and calls are still answered."""
        if self._file is None:
            return
        try:
            self._file.write(orjson.dumps(codec.plain(decision)) + b"\n")
        except OSError as error:
            sys.stderr.write(f"router: the log of decisions ends here, because it cannot be written: {error.strerror}\n")
            self.close()
            self._file = None

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()


def read_decisions(file: Path) -> Iterator[LoggedDecision]:
    """Yields the decisions of a log. A last line that is incomplete, because the router was killed, is left out. Raises ConfigError."""
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield codec.read(LoggedDecision, orjson.loads(line))
        except ValueError as error:
            raise ConfigError(f"{file}:{number}: not a decision of the router: {error}") from None
