"""The live page of a run: reads new records of its journal, and serves them to the page on a loopback address."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.file_system import lock
from pytest_agentbench.lib.json_text import opened
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.records import Json, Rollout, RolloutKey, Scale
from pytest_agentbench.reports.html import no_address
from pytest_agentbench.reports.page.blocks import NumberedRollouts, encoded
from pytest_agentbench.reports.page.data import PackedRollouts, PageTable, RunData, main, mains_of, urls_of
from pytest_agentbench.reports.page.layout import RolloutLinks, page, run_html
from pytest_agentbench.reports.page.pictures import Distributions, intervals, server_series
from pytest_agentbench.reports.page.rollouts import detail
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.sections.so_far import SoFar, document_so_far
from pytest_agentbench.reports.view import RunView, tone
from pytest_agentbench.runs import run_file
from pytest_agentbench.runs.conversations import Transcripts
from pytest_agentbench.runs.journal import FILE, rollout_of
from pytest_agentbench.runs.judgement import Judge
from pytest_agentbench.runs.nodes import read_nodes
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.runs.sessions import SESSIONS_FILE as SESSIONS
from pytest_agentbench.runs.sessions import Session, read_sessions

RunPhase = Literal["running", "stopped", "ended"]  # "stopped": its session is writing reports, or was killed

AT_ONCE = 250  # maximum records read and rows sent for one request; the page requests the rest immediately
SAMPLES_S = 5.0  # minimum seconds between two updates of the server metrics
RATIO = 20  # The time between two updates is at least this many times the duration of the last one.


class LiveRun:
    """The data of a live page. It follows a run directory, and keeps table rows (about a kilobyte each) and the offsets of records.

    Safe to use from threads. When a session of the run starts or ends, everything is read again, and the page has to
    replace its rows.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._stopped_at: tuple[int, int] | None = None  # the timestamps at which no session held the lock of the journal
        self._timestamps = _timestamps(directory)
        self._records = LiveRecords(directory, _finished(directory, self._timestamps))

    def page(self) -> str:
        """Returns the HTML of the page without rows. Its script gets them from `news`."""
        with self._lock:
            index = {"name": self.directory.name, "mains": {}, "urls": {}, "server": [], **PackedRollouts(Judge()).index()}
            return page(self.directory.name, self._records.html(self._phase()), [RunData(index, ())], [], live=True)

    def news(self, generation: str, state: str, after: int) -> str:
        """Returns JSON with the next rows (at most AT_ONCE) and the state of the run, or `{}` if the page is up to date.

        `generation` and `state` are from the last answer that the page got; `after` is the number of rows that it has. If a session
        has started or ended since, the generation is new, and the rows are sent from the first one. Raises OSError and ConfigError.
        """
        with self._lock:
            self._reload()
            now = "-".join(map(str, self._timestamps))
            begin = after if generation == now else 0
            more = self._records.read_more() or len(self._records.rows) > begin + AT_ONCE
            phase, updates = self._phase(), self._records.update_server_metrics()
            latest = f"{now}-{phase}-{len(self._records.rows)}-{self._records.damaged}-{updates}"
            if latest == state and begin == len(self._records.rows):
                return "{}"
            return self._answer({"generation": now, "state": latest, "phase": phase, "more": more}, begin)

    def _answer(self, head: Json, after: int) -> str:
        contents = self._records
        rest = {
            "mains": contents.mains,
            "urls": urls_of(contents.run) if contents.run else {},
            "distributions": contents.distributions.plain(),
            "server": contents.server,
            "compared": intervals(contents.run) if contents.run else [],
            "first": contents.html(head["phase"]),
            "verdict": contents.run.verdict if contents.run else "",
            "tone": tone(contents.run.verdict) if contents.run else "",
            "damaged": contents.damaged,
        }
        return f'{encoded({**head, **rest})[:-1]},"rows":[{",".join(contents.rows[after : after + AT_ONCE])}]}}'

    def rollout(self, number: int) -> str:
        """Returns a block with the rollout of a row as JSON.

        Raises IndexError for an unknown row, and OSError or ValueError if it is unreadable.
        """
        with self._lock:
            rollout = self._records.record(number)
        return NumberedRollouts(self.directory).alone(json_text.loads(encoded(detail(rollout)).encode()))

    def _reload(self) -> None:
        """Reads everything again if a session has started or ended since the last call."""
        timestamps = _timestamps(self.directory)
        if timestamps != self._timestamps:
            self._timestamps, self._records = timestamps, LiveRecords(self.directory, _finished(self.directory, timestamps))

    def _phase(self) -> RunPhase:
        """Returns whether the run has ended, is running, or has stopped (no session is running, but its results are not written).

        A session is running if it holds the lock of the journal. Once the lock was free, it is not tried again until a session
        starts, because that session needs the lock.
        """
        if self._records.run:
            return "ended"
        if self._stopped_at == self._timestamps:
            return "stopped"
        if _is_held(self.directory / FILE):
            return "running"
        self._stopped_at = self._timestamps
        return "stopped"


class LiveRecords:
    """The records read since a session of the run last started or ended. `LiveRun` then replaces this object."""

    def __init__(self, directory: Path, run: Run | None) -> None:
        """`run` is the finished run, or None if the run has not ended."""
        self.run, self._directory = run, directory
        self.table, self.distributions = PageTable(Judge.of(run) if run else Judge()), Distributions()
        self.rows: list[str] = []  # table rows as JSON; if a rollout ran again, its last row counts
        self.places: list[tuple[int, int]] = []  # offset and size of the record of each row, in bytes
        self.damaged = 0  # number of invalid lines
        self._transcripts = Transcripts(directory, lambda _: None)
        self.server: list[Json] = []
        self.so_far = SoFar()
        self._sessions = read_sessions(directory)
        self._read, self._is_read = 0, False  # bytes read so far, and whether that is the whole file
        self._html: dict[bool, str] = {}  # the report of a run that has ended, without and with links, which need all records
        self._numbers: dict[RolloutKey, int] = {}
        self._updates, self._next_update = 0, 0.0  # seconds, time.monotonic()

    @property
    def mains(self) -> Json:
        """The main score of each suite or `suite-variant`. Until the run has ended, it is taken from the session records."""
        if self.run:
            return mains_of(self.run)
        groups = {key.group: key.suite for key in self._numbers}
        scales = {suite: facts["scales"] for session in self._sessions for suite, facts in session.suites.items()}
        mains = {suite: next(iter(each.items())) for suite, each in scales.items() if each}
        return {group: main(mains[suite][0], codec.read(Scale, mains[suite][1])) for group, suite in groups.items() if suite in mains}

    @property
    def session(self) -> Session | None:
        """The last session of the run, or None for an imported run."""
        return self._sessions[-1] if self._sessions else None

    def html(self, phase: RunPhase) -> str:
        """Returns the report of the run as HTML, or the results so far if the run has not ended."""
        if self.run is None:
            stopped, nodes = phase == "stopped", read_nodes(self._directory)
            return run_html(document_so_far(self._directory.name, self.session, self.so_far, stopped=stopped, nodes=nodes), no_address)
        if self._is_read not in self._html:
            address = RolloutLinks(self._numbers).of if self._is_read else no_address
            self._html[self._is_read] = run_html(document(RunView(self.run, self._directory)), address)
        return self._html[self._is_read]

    def read_more(self) -> bool:
        """Reads the next records, at most AT_ONCE. Returns whether more may follow."""
        new, replaced = FrameReader(), FrameReader()
        try:
            with (self._directory / FILE).open("rb") as lines:
                lines.seek(self._read)
                for _ in range(AT_ONCE):
                    line = lines.readline()
                    if not line.endswith(b"\n"):  # the end of the file, or a record that is being written
                        self._is_read = True
                        return False
                    self._take(line[:-1], new, replaced)
                    self._read += len(line)
                self._is_read = False
                return True
        finally:
            self.distributions.add(new.frame())
            self.distributions.add(replaced.frame(), -1)

    def _take(self, line: bytes, new: FrameReader, replaced: FrameReader) -> None:
        try:
            rollout = self._transcripts.completed(rollout_of(opened(line)))
        except (ValueError, TypeError, KeyError, AttributeError):
            self.damaged += 1
            return
        if rollout.kind != "scenario":
            return
        if (number := self._numbers.get(rollout.key)) is not None:
            earlier = self.record(number)
            replaced.add(earlier)
            self.so_far.remove(earlier)
        self._numbers[rollout.key] = len(self.places)
        self.so_far.add(rollout)
        new.add(rollout)
        self.rows.append(encoded(self.table.row(rollout)))
        self.places.append((self._read, len(line)))

    def record(self, number: int) -> Rollout:
        """Reads the rollout of a row from the journal."""
        offset, size = self.places[number]
        with (self._directory / FILE).open("rb") as file:
            file.seek(offset)
            return self._transcripts.completed(rollout_of(opened(file.read(size))))

    def update_server_metrics(self) -> int:
        """Reads the samples of server metrics again if the last reading is long enough ago. Returns how often they have been read."""
        began = time.monotonic()
        if began >= self._next_update and self.table.began is not None:
            self.server = server_series(self._directory, self.table.began)
            self._updates += 1
            ended = time.monotonic()
            self._next_update = ended + max(SAMPLES_S, RATIO * (ended - began)) if self.run is None else float("inf")
        return self._updates


def _timestamps(directory: Path) -> tuple[int, int]:
    """Returns the times of the last start and the last end of a session, in nanoseconds since 1970; 0 if there was none."""
    began, ended = (_changed(directory / name) for name in (SESSIONS, run_file.FILE))
    return began, ended


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _finished(directory: Path, timestamps: tuple[int, int]) -> Run | None:
    """Returns the run if its last session has ended, otherwise None. Raises ConfigError if run.json is invalid."""
    began, ended = timestamps
    return run_file.read_run(directory) if ended > began else None


def _is_held(journal: Path) -> bool:
    """Returns whether a session holds the lock of the journal."""
    with journal.open("rb") as file:
        return not lock(file, shared=True)


def newest(reports: Path) -> Path:
    """Returns the directory of the run that was started or written to last. Raises ConfigError if there is none."""
    runs = {path.parent.resolve() for path in reports.glob(f"*/{FILE}")}
    if not runs:
        raise ConfigError(
            f"there is no run in {reports} to watch; start one with pytest, or pass the parent directory of runs with --reports DIR"
        )
    return max(runs, key=lambda run: (max(_changed(run / FILE), _changed(run / SESSIONS)), run.name))


PATIENCE = 10.0  # seconds until a silent connection is closed
MOST = 64  # maximum number of connections; further ones are closed

#: Headers of all answers. They prevent caching, framing, and guessing of the content type.
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Loopback(ThreadingHTTPServer):
    """The HTTP server of a live page, on a free port of 127.0.0.1. Its address contains a random token."""

    daemon_threads = True
    request_queue_size = 2 * MOST  # If the queue is full, Linux drops the SYN, and the client repeats it a second later.

    def __init__(self, run: LiveRun) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.run = run
        self.token = secrets.token_urlsafe(24)
        self._free_connections = threading.BoundedSemaphore(MOST)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free_connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints the error of a request, unless the browser closed the connection or was silent for too long."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers the requests of a browser for the live page and its data."""

    server: Loopback
    timeout = PATIENCE
    server_version, sys_version = "agentbench", ""

    def do_GET(self) -> None:
        """Answers with the page, its updates, or a rollout. The check of the Host header prevents DNS rebinding."""
        if self.headers.get("Host") not in {f"{host}:{self.server.server_port}" for host in ("127.0.0.1", "localhost")}:
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "unexpected Host header\n")
        place = urlsplit(self.path)
        _, token, name = f"{place.path}//".split("/", 3)[:3]
        if not secrets.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")
        try:
            kind, body = self._body(name, {key: values[-1] for key, values in parse_qs(place.query, keep_blank_values=True).items()})
        except (LookupError, ValueError):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")
        except (OSError, ConfigError) as error:
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n")
        return self._answer(HTTPStatus.OK, kind, body)

    def _body(self, name: str, query: dict[str, str]) -> tuple[str, str]:
        """Returns content type and text of an answer. `name` is the path after the token: empty, `news` or `rollout`.

        Raises:
            LookupError or ValueError: The requested page or rollout does not exist, or an argument is invalid.
            OSError or ConfigError: The files of the run cannot be read.
        """
        run = self.server.run
        match name:
            case "":
                return "text/html", run.page()
            case "news":
                return "application/json", run.news(query["generation"], query["state"], max(0, int(query["after"])))
            case "rollout":
                return "application/json", run.rollout(max(0, int(query["number"])))
        raise LookupError(name)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing, because the address contains the token."""
