"""The file samples.jsonl, which has the metrics of a backend's services and GPUs over time: writing and reading it."""

from __future__ import annotations

import math
import os
import ssl
import threading
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import FileIO
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, final
from urllib.parse import urlsplit

import orjson

from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.gpus import Gpu
from pytest_agentbench.backends.telemetry.kv_events import FILE as EVENTS
from pytest_agentbench.backends.telemetry.kv_events import EventCopy, EventSource
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Json

FILE = "samples.jsonl"

SampleSource = tuple[str, int]  # service, and replica counted from 0


class Series(NamedTuple):
    """One Prometheus time series: a metric of one replica of a service, with the metric's labels."""

    source: SampleSource
    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """The metrics of one replica of a service at one time, as far as they have changed since the sample before."""

    round: int  # number of the round in which all replicas and GPUs were sampled
    at_ns: int  # time.monotonic_ns() when the answer had arrived
    source: SampleSource
    first: bool = False  # whether `values` has all series, not only changes
    values: Mapping[Series, float] = field(default_factory=dict)  # values of new and changed series
    unknown: frozenset[Series] = frozenset()  # series whose value is not a finite number
    gone: frozenset[Series] = frozenset()  # series that have disappeared
    failed: str = ""  # why the sample failed; of consecutive failures only the first is written
    at: float = 0.0  # seconds since 1970


@dataclass(frozen=True)
class GpuSample:
    """The load of one GPU at one time."""

    round: int
    at_ns: int
    gpu: str
    used_mib: int
    total_mib: int
    sm_percent: float | None
    power_w: float | None
    at: float = 0.0  # seconds since 1970


@final
class ServiceLine(TypedDict):
    """A sample of one replica's metrics. Consecutive failed samples have only one line, and the next line has all series."""

    round: int  # looks of the same round belong together
    at: float  # seconds since 1970
    ns: int  # nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    service: str
    replica: int  # counted from 0
    first: NotRequired[bool]  # true: the line has all series; other lines have only series whose values changed
    series: NotRequired[list[tuple[str, dict[str, str]]]]  # new series: name and labels; numbered from 0 since the last `first`
    values: NotRequired[list[tuple[int, float | None]]]  # number of a series and its value, null if it is not a finite number
    gone: NotRequired[list[int]]  # numbers of series that have disappeared
    failed: NotRequired[str]  # why there are no values


@final
class GpuLine(TypedDict):
    """A sample of the load of one GPU."""

    round: int  # looks of the same round belong together
    at: float  # seconds since 1970
    ns: int  # nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    gpu: str
    used_mib: int  # MiB
    total_mib: int  # MiB
    sm_percent: float | None  # null if the driver does not report it
    power_w: float | None  # watts; null if the driver does not report it


def read_samples(directory: Path, names: Container[str]) -> Iterator[Sample | GpuSample]:
    """Reads samples.jsonl in a run directory, and yields its samples with only the metrics of these names.

    Yields none if the run has no such file.
    """
    path = directory / FILE
    if not path.is_file():
        return
    tables: dict[SampleSource, list[Series | None]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):  # A killed session may leave a truncated last line.
                try:
                    facts = orjson.loads(line)
                except orjson.JSONDecodeError as error:  # also raised for JSON that is nested too deeply
                    raise ConfigError(f"{path}:{number}: not valid JSON: {error}; remove the line") from error
                yield _sample(facts, tables, names)


def _sample(line: ServiceLine | GpuLine, tables: dict[SampleSource, list[Series | None]], names: Container[str]) -> Sample | GpuSample:
    if "gpu" in line:
        memory, load = (line["used_mib"], line["total_mib"]), (line["sm_percent"], line["power_w"])
        return GpuSample(line["round"], line["ns"], line["gpu"], *memory, *load, at=line["at"])
    source = line["service"], line["replica"]
    if "failed" in line:
        return Sample(line["round"], line["ns"], source, failed=line["failed"], at=line["at"])
    table = tables.setdefault(source, [])
    first = "first" in line
    if first:
        table.clear()
    for name, labels in line.get("series", ()):
        table.append(Series(source, name, tuple(sorted(labels.items()))) if name in names else None)
    every = {series: value for number, value in line["values"] if (series := table[number])}
    values = {series: value for series, value in every.items() if value is not None}
    gone = frozenset(series for number in line.get("gone", ()) if (series := table[number]))
    return Sample(line["round"], line["ns"], source, first, values, frozenset(every.keys() - values.keys()), gone, at=line["at"])


class Changes(NamedTuple):
    """The difference between two readings of a server's metrics. Series are numbered in the order of their first appearance."""

    series: list[tuple[str, dict[str, str]]]  # new series: name and labels
    values: list[tuple[int, float]]  # number and value of series that are new, changed or reappeared
    gone: list[int]  # numbers of series that have disappeared


class Page:
    """The values that the metrics of one server had at the last reading."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # `name{labels}` as on the page -> number
        self._values: list[str] = []  # number -> value as on the page; empty: disappeared

    def changes(self, text: str) -> Changes:
        """Takes over a new reading (`text`) and returns what has changed. Raises ValueError if it is not in Prometheus format."""
        changes = Changes([], [], [])
        lines = {line[:end]: line[end:] for line in text.splitlines() if line and line[0] != "#" and (end := _end_of_labels(line))}
        for written, value in lines.items():
            if (number := self._numbers.get(written)) is None:
                changes.series.append(_parsed(written + value))
                number = self._numbers[written] = len(self._values)
                self._values.append("")
            if self._values[number] != value:
                self._values[number] = value
                changes.values.append((number, _number(value)))
        if len(lines) < len(self._numbers):
            changes.gone.extend(number for written, number in self._numbers.items() if self._values[number] and written not in lines)
            for number in changes.gone:
                self._values[number] = ""
        return changes


def _end_of_labels(line: str) -> int:
    """Returns where the value begins in a line of Prometheus text. No brace follows the labels, as this format has no exemplars."""
    return line.rfind("}") + 1 or line.find(" ") + 1 or len(line)


def _number(text: str) -> float:
    return float((text.split() or [""])[0])  # A timestamp may follow the value.


def _parsed(line: str) -> tuple[str, dict[str, str]]:
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(f"{line}\n") for sample in family.samples]
    if len(samples) != 1:
        raise ValueError(f"{line[:80]!r} is not a line of Prometheus text")
    return samples[0].name, samples[0].labels


TIMEOUT = 2.0  # seconds for each step of a request
LAST_ROUND = 5.0  # seconds for the last round


@dataclass(frozen=True)
class Target:
    """The URL at which one replica of a service has its metrics, in Prometheus text."""

    service: str
    replica: int  # counted from 0
    url: str
    ca_file: str | None = None  # certificate authority of an https URL, PEM


@dataclass(frozen=True)
class Sources:
    """All that can be sampled of a backend: the URLs of its metrics, and its GPUs."""

    targets: tuple[Target, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    every_s: float = 1.0  # seconds between two rounds
    kv_events: tuple[EventSource, ...] = ()  # files of KV cache events, which are copied in each round

    @property
    def are_empty(self) -> bool:
        return not (self.targets or self.gpus or self.kv_events)


@dataclass
class SampledTarget:
    """A metrics URL that is being sampled: its connection, its last values, and its failures."""

    target: Target
    page: Page = field(default_factory=Page)
    is_new: bool = True  # whether its next line has to be a `first`
    failures: int = 0  # failed samples
    failing: str = ""  # why the last sample failed; empty if it did not

    def __post_init__(self) -> None:
        self._is_requested = False
        url = urlsplit(self.target.url)
        self._path = f"{url.path or '/'}{f'?{url.query}' if url.query else ''}"
        if url.scheme == "https":
            tls = ssl.create_default_context(cafile=self.target.ca_file)
            self._connection: HTTPConnection = HTTPSConnection(url.netloc, timeout=TIMEOUT, context=tls)
        else:
            self._connection = HTTPConnection(url.netloc, timeout=TIMEOUT)

    def ask(self) -> None:
        """Sends a request for the metrics. It raises nothing; `answer` raises the errors."""
        self._is_requested = False
        with suppress(OSError, HTTPException):
            self._request()
            self._is_requested = True

    def answer(self) -> str:
        """Waits for the answer to `ask`, and returns the metrics as text. Raises OSError or HTTPException."""
        response = self._response()
        text = response.read().decode(errors="replace")
        if response.status != 200:
            raise HTTPException(f"the server answered {response.status} {response.reason}")
        return text

    def _response(self) -> HTTPResponse:
        if self._is_requested:
            with suppress(ConnectionError):  # The server may have closed the idle connection.
                return self._connection.getresponse()
        self._connection.close()
        self._request()
        return self._connection.getresponse()

    def renew(self) -> None:
        """Forgets the last values, so that the next line in the file contains all series again (a `first` line)."""
        self.page, self.is_new = Page(), True

    def close(self) -> None:
        self._connection.close()

    def _request(self) -> None:
        self._connection.request("GET", self._path, headers={"Accept": "text/plain; version=0.0.4"})


class Sampler:
    """Writes samples of all metrics URLs and GPUs of a backend to samples.jsonl at regular intervals, in a thread.

    Failures are counted and described in `notes`. They are never errors of the session.
    """

    def __init__(self, sources: Sources, file: Path) -> None:
        self.rounds = 0  # rounds so far
        self.cpu_s = 0.0  # CPU seconds of the thread
        self.every_s = sources.every_s
        self._watched = [SampledTarget(target) for target in sources.targets]
        self._gpus = [gpu for gpu in sources.gpus if gpu.uuid]
        self._events = EventCopy(sources.kv_events, file.with_name(EVENTS))
        self._path = file
        self._file: FileIO | None = None  # open while the thread runs
        self._lost_lines = 0  # lines that could not be written
        self._faults: dict[str, str] = {}  # what failed -> reason
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. The first round of samples is taken before this returns, as counters have to start there."""
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            self._faults[self._path.name] = f"cannot be written: {error.strerror}"
            return
        self._take_round(self._file.fileno())
        self._thread = daemon(self._run, name="sampler")

    def stop(self) -> None:
        """Takes a last round of samples and ends the thread. May be called without a start, and twice."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(LAST_ROUND)
            if self._thread.is_alive():
                self._faults["the last sample"] = f"took longer than {LAST_ROUND:g} s; data since the one before it are missing"

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about samples that failed."""
        ignored = [f"{EVENTS}: {self._events.ignored} lines could not be read"] if self._events.ignored else []
        failed = [
            f"{each.target.service}[{each.target.replica}]: {each.failures} of {self.rounds} samples of {each.target.url} failed"
            f"{f', including the last: {each.failing}' if each.failing else ''}"
            for each in self._watched
            if each.failures
        ]
        return failed + ignored + [f"{what}: {why}" for what, why in self._faults.items()]

    def _run(self) -> None:
        assert self._file is not None
        with self._file:
            self._sample(self._file.fileno())
        for each in self._watched:
            each.close()

    def _sample(self, file: int) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self.every_s, time.monotonic())  # After a delay, missed rounds are not caught up on.
            self._stopping.wait(due - time.monotonic())
            is_last = self._stopping.is_set()
            self._take_round(file)
            self.cpu_s = time.thread_time()
            if is_last:
                return

    def _take_round(self, file: int) -> None:
        """Takes one sample of each URL and GPU. All requests are sent before the first answer is read, so that servers work in parallel."""
        for each in self._watched:
            each.ask()
        for each in self._watched:
            if line := self._line(each):
                self._write(file, {**line, "service": each.target.service, "replica": each.target.replica})
        for gpu in self._gpus:
            try:
                self._write(file, {**self._now(), "gpu": gpu.id, **codec.plain(gpus.load(gpu.uuid))})
            except Exception as error:  # Errors of NVML, whose class is only available if it is installed.
                self._faults[f"GPU {gpu.id}"] = str(error)
        try:
            self._events.copy()
        except OSError as error:
            self._faults[EVENTS] = f"events are lost: {error.strerror}"
        self.rounds += 1

    def _line(self, watched: SampledTarget) -> Json | None:
        """Reads the answer of a metrics URL, and returns its line for the file, or None if it has failed again."""
        try:
            changes = watched.page.changes(watched.answer())
        except (OSError, HTTPException, ValueError) as error:
            watched.close()
            watched.renew()  # The page may have been read only in part.
            watched.failures += 1
            was_failing, watched.failing = watched.failing, str(error) or repr(error)
            return None if was_failing else {**self._now(), "failed": watched.failing}
        watched.failing = ""
        line = self._now()
        if watched.is_new:
            line["first"] = True
            watched.is_new = False
        if changes.series:
            line["series"] = changes.series
        line["values"] = [(number, value if math.isfinite(value) else None) for number, value in changes.values]
        if changes.gone:
            line["gone"] = changes.gone
        return line

    def _now(self) -> Json:
        return {"round": self.rounds, "at": time.time(), "ns": time.monotonic_ns()}

    def _write(self, file: int, line: Json) -> None:
        """Appends a line to the file. If that fails, an incomplete line is removed, and the next line of each URL has all series."""
        data = orjson.dumps(line) + b"\n"
        size = os.fstat(file).st_size
        try:
            if os.write(file, data) == len(data):
                return
            why = "no space left on the device"
        except OSError as error:
            why = str(error.strerror)
        with suppress(OSError):  # Devices cannot be truncated.
            os.ftruncate(file, size)
        self._lost_lines += 1
        self._faults[self._path.name] = f"{self._lost_lines} lines are lost: {why}"
        for each in self._watched:
            each.renew()
