"""samples.jsonl: what the services of a backend and its GPUs tell over time, and the sampler that looks at their metrics."""

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
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Json

FILE = "samples.jsonl"

SampleSource = tuple[str, int]  # service and replica, counted from 0


class Series(NamedTuple):
    """One time series: a metric of a replica under some labels."""

    source: SampleSource
    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """What one look found."""

    round: int  # looks of the same round belong together
    at_ns: int  # time.monotonic_ns() when the answer was there
    source: SampleSource
    first: bool = False  # `values` has all series that there are
    values: Mapping[Series, float] = field(default_factory=dict)  # of series that changed or are new
    unknown: frozenset[Series] = frozenset()  # told as what is no finite number
    gone: frozenset[Series] = frozenset()
    failed: str = ""  # why there is nothing; only the first of several such looks is written
    at: float = 0.0  # seconds since 1970


@dataclass(frozen=True)
class GpuSample:
    """How busy a GPU was."""

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
    """A look at a replica of a service. Of several that failed in a row the first has a line, and the one after them is a `first` again."""

    round: int  # looks of the same round belong together
    at: float  # seconds since 1970
    ns: int  # nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    service: str
    replica: int  # counted from 0
    first: NotRequired[bool]  # the line has all series; later ones have only those whose values changed
    series: NotRequired[list[tuple[str, dict[str, str]]]]  # new ones, name and labels; numbered from 0 on since the last `first`
    values: NotRequired[list[tuple[int, float | None]]]  # a series' number and its value, null for what is no finite number
    gone: NotRequired[list[int]]  # numbers of series that the service tells no more
    failed: NotRequired[str]  # why there are no values


@final
class GpuLine(TypedDict):
    """A look at a GPU."""

    round: int  # looks of the same round belong together
    at: float  # seconds since 1970
    ns: int  # nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    gpu: str
    used_mib: int  # MiB
    total_mib: int  # MiB
    sm_percent: float | None  # null where the driver does not tell
    power_w: float | None  # watts, or null likewise


def read_samples(directory: Path, names: Container[str]) -> Iterator[Sample | GpuSample]:
    """The samples of a run, with those of their series that have one of these names; nothing where none were taken."""
    path = directory / FILE
    if not path.is_file():
        return
    tables: dict[SampleSource, list[Series | None]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):  # a last line may be torn by a kill
                try:
                    facts = orjson.loads(line)
                except orjson.JSONDecodeError as error:  # also if it is nested too deeply
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
    """What a page says that it did not say before. Series are known by their number, in the order in which they came."""

    series: list[tuple[str, dict[str, str]]]  # new ones: name and labels
    values: list[tuple[int, float]]  # of series that are new, changed or back again
    gone: list[int]


class Page:
    """What was read of one page so far."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # `name{labels}`, as it is written -> number
        self._values: list[str] = []  # number -> value, as it is written; empty: gone

    def changes(self, text: str) -> Changes:
        """Raises ValueError when the text is none of Prometheus."""
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
    """Where the value begins. No brace can follow the labels; exemplars are no part of this format."""
    return line.rfind("}") + 1 or line.find(" ") + 1 or len(line)


def _number(text: str) -> float:
    return float((text.split() or [""])[0])  # a time may follow


def _parsed(line: str) -> tuple[str, dict[str, str]]:
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(f"{line}\n") for sample in family.samples]
    if len(samples) != 1:
        raise ValueError(f"no series in {line[:80]!r}")
    return samples[0].name, samples[0].labels


TIMEOUT = 2.0  # seconds for each step of a request
LAST_ROUND = 5.0  # seconds that the last look may take


@dataclass(frozen=True)
class Target:
    """Where a replica of a service tells its metrics in Prometheus text."""

    service: str
    replica: int  # counted from 0
    url: str
    ca_file: str | None = None  # certificate authority of an https URL, PEM


@dataclass(frozen=True)
class Sources:
    """What can be sampled of a backend."""

    targets: tuple[Target, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    every_s: float = 1.0


@dataclass
class SampledTarget:
    """A target, the connection to it, and how looking at it goes."""

    target: Target
    page: Page = field(default_factory=Page)
    is_new: bool = True  # its next line is the first, or as good as that
    failures: int = 0
    failing: str = ""  # why the last look found nothing

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
        """Sends the request; what is wrong shows when the answer is read."""
        self._is_requested = False
        with suppress(OSError, HTTPException):
            self._request()
            self._is_requested = True

    def answer(self) -> str:
        """The page; raises OSError or HTTPException."""
        response = self._response()
        text = response.read().decode(errors="replace")
        if response.status != 200:
            raise HTTPException(f"it answered {response.status} {response.reason}")
        return text

    def _response(self) -> HTTPResponse:
        if self._is_requested:
            with suppress(ConnectionError):  # the server closed a connection that was idle
                return self._connection.getresponse()
        self._connection.close()
        self._request()
        return self._connection.getresponse()

    def renew(self) -> None:
        """The next line tells everything again."""
        self.page, self.is_new = Page(), True

    def close(self) -> None:
        self._connection.close()

    def _request(self) -> None:
        self._connection.request("GET", self._path, headers={"Accept": "text/plain; version=0.0.4"})


class Sampler:
    """Samples at an interval, in a thread. What fails is counted and noted, and is never an error of the session."""

    def __init__(self, sources: Sources, file: Path) -> None:
        self.rounds = 0
        self.cpu_s = 0.0  # that the thread took
        self.every_s = sources.every_s
        self._watched = [SampledTarget(target) for target in sources.targets]
        self._gpus = [gpu for gpu in sources.gpus if gpu.uuid]
        self._path = file
        self._file: FileIO | None = None  # while it samples
        self._lost_lines = 0  # lines that could not be written
        self._faults: dict[str, str] = {}  # what could not be done -> why
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Looks a first time before it returns: counters are read from there on, however busy the machine is afterwards."""
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            self._faults[self._path.name] = f"cannot be written: {error.strerror}"
            return
        self._take_round(self._file.fileno())
        self._thread = daemon(self._run, name="sampler")

    def stop(self) -> None:
        """Looks a last time. May be called without a start, and twice."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(LAST_ROUND)
            if self._thread.is_alive():
                self._faults["the last look"] = f"took longer than {LAST_ROUND:g} s: what happened after the one before it is missing"

    @property
    def notes(self) -> list[str]:
        """What went wrong, for people."""
        failed = [
            f"{each.target.service}[{each.target.replica}]: {each.failures} of {self.rounds} looks at {each.target.url} failed"
            f"{f', the last one too: {each.failing}' if each.failing else ''}"
            for each in self._watched
            if each.failures
        ]
        return failed + [f"{what}: {why}" for what, why in self._faults.items()]

    def _run(self) -> None:
        assert self._file is not None
        with self._file:
            self._sample(self._file.fileno())
        for each in self._watched:
            each.close()

    def _sample(self, file: int) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self.every_s, time.monotonic())  # what is late does not hurry afterwards
            self._stopping.wait(due - time.monotonic())
            is_last = self._stopping.is_set()
            self._take_round(file)
            self.cpu_s = time.thread_time()
            if is_last:
                return

    def _take_round(self, file: int) -> None:
        """One round: all are asked before the first answer is read, so that slow ones take their time together."""
        for each in self._watched:
            each.ask()
        for each in self._watched:
            if line := self._line(each):
                self._write(file, {**line, "service": each.target.service, "replica": each.target.replica})
        for gpu in self._gpus:
            try:
                self._write(file, {**self._now(), "gpu": gpu.id, **codec.plain(gpus.load(gpu.uuid))})
            except Exception as error:  # the library's errors, whose class is known only where it is installed
                self._faults[f"GPU {gpu.id}"] = str(error)
        self.rounds += 1

    def _line(self, watched: SampledTarget) -> Json | None:
        """What a look at a target found; None when it failed once more."""
        try:
            changes = watched.page.changes(watched.answer())
        except (OSError, HTTPException, ValueError) as error:
            watched.close()
            watched.renew()  # a page that broke off was read in part
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
        """Appends a line; where that cannot be done the file keeps its whole lines, and the next ones tell everything again."""
        data = orjson.dumps(line) + b"\n"
        size = os.fstat(file).st_size
        try:
            if os.write(file, data) == len(data):
                return
            why = "no space left on the device"
        except OSError as error:
            why = str(error.strerror)
        with suppress(OSError):  # it has no size
            os.ftruncate(file, size)
        self._lost_lines += 1
        self._faults[self._path.name] = f"{self._lost_lines} lines are lost: {why}"
        for each in self._watched:
            each.renew()
