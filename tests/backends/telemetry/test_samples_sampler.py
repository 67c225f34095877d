"""Sampling of real servers, and samples.jsonl."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.telemetry import samples as sampler_module
from pytest_agentbench.backends.telemetry.samples import Sample, Sampler, Series, Sources, Target, read_samples
from pytest_agentbench.records import Json
from tests.web import QuietHandler

pytestmark = pytest.mark.timeout(60)


class Server(ThreadingHTTPServer):
    """A server that serves one page after the other and repeats the last one. A page that is None is a server error."""

    daemon_threads = True

    def __init__(self, *pages: str | None, protocol: str = "HTTP/1.1", closes: bool = False) -> None:
        class Handler(QuietHandler):
            protocol_version = protocol
            server: Server

            def do_GET(self) -> None:
                self.server.goes_on.wait(30)
                page = self.server.next_page(self.client_address[1])
                body = (page or "out of order").encode()
                self.answer(200 if page is not None else 503, body)
                self.close_connection |= closes

        super().__init__(("127.0.0.1", 0), Handler)
        self.pages = list(pages)
        self.seen = 0
        self.clients: set[int] = set()
        self.enough = threading.Event()
        self.goes_on = threading.Event()  # requests wait while it is not set
        self.goes_on.set()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def hold(self) -> threading.Event:
        """Delays answers until the event is set."""
        self.goes_on.clear()
        return self.goes_on

    def next_page(self, client: int) -> str | None:
        self.clients.add(client)
        self.seen += 1
        if self.seen >= len(self.pages):
            self.enough.set()
        return self.pages[min(self.seen, len(self.pages)) - 1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Servers that are stopped after the test."""
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


def sampled(folder: Path, *servers: Server) -> tuple[Sampler, list[Json]]:
    """Runs a sampler until all servers have served all pages. Returns it and the lines of its file."""
    targets = tuple(Target("engine", number, server.url) for number, server in enumerate(servers))
    sampler = Sampler(Sources(targets, every_s=0.01), folder / "samples.jsonl")
    sampler.start()
    assert all(server.enough.wait(30) for server in servers)
    sampler.stop()
    return sampler, [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_only_what_changed_is_written(servers: list[Server], tmp_path: Path) -> None:
    """The first line has all series, later lines only changed ones. All requests use one connection."""
    servers.append(Server('a{x="1"} 1\nb 2\n', 'a{x="1"} 1\nb NaN\n', 'a{x="1"} 4\nc 5\n'))

    sampler, lines = sampled(tmp_path, *servers)

    told = [{key: value for key, value in line.items() if key not in ("at", "ns")} for line in lines[:3]]
    engine = {"service": "engine", "replica": 0}
    assert [
        {"round": 0, "first": True, "series": [["a", {"x": "1"}], ["b", {}]], "values": [[0, 1.0], [1, 2.0]], **engine},
        {"round": 1, "values": [[1, None]], **engine},
        {"round": 2, "series": [["c", {}]], "values": [[0, 4.0], [2, 5.0]], "gone": [1], **engine},
    ] == told
    assert sampler.rounds == len(lines) >= 4
    assert [] == sampler.notes
    assert 1 == len(servers[0].clients)
    assert sampler.cpu_s > 0
    assert all(before["ns"] < after["ns"] and before["at"] > 1.6e9 for before, after in pairwise(lines))


def test_the_first_look_is_over_when_it_starts(servers: list[Server], tmp_path: Path) -> None:
    """Counters include the first call, even if the second round is late, because `start` waits for the first round."""
    servers.append(Server("a 1\n"))
    sampler = Sampler(Sources((Target("engine", 0, servers[0].url),), every_s=3600), tmp_path / "samples.jsonl")
    sampler.start()
    looks = servers[0].seen, [json.loads(line)["values"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    servers[0].pages.append("a 5\n")
    sampler.stop()

    assert (1, [[[0, 1.0]]]) == looks
    assert [[0, 5.0]] == json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[-1])["values"]


def test_a_last_look_that_never_ends(servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop does not wait forever for the last round, and notes what is missing."""
    monkeypatch.setattr(sampler_module, "LAST_ROUND", 0.0)  # The waiting time itself is not tested.
    servers.append(Server("a 1\n"))
    sampler = Sampler(Sources((Target("engine", 0, servers[0].url),), every_s=3600), tmp_path / "samples.jsonl")
    sampler.start()
    held = servers[0].hold()
    sampler.stop()
    notes = sampler.notes
    held.set()

    assert ["the last sample: took longer than 0 s; data since the one before it are missing"] == notes


def test_read_again(servers: list[Server], tmp_path: Path) -> None:
    """Samples are read as they were written, limited to the requested series. Each replica has its own samples."""
    servers += [Server('a{x="1"} 1\nb 2\n', 'a{x="1"} 4\nc 5\n'), Server("a 7\n")]
    sampled(tmp_path, *servers)

    a, other, c = (
        Series(("engine", number), name, labels) for number, name, labels in ((0, "a", (("x", "1"),)), (1, "a", ()), (0, "c", ()))
    )
    samples = [sample for sample in read_samples(tmp_path, {"a", "c"}) if isinstance(sample, Sample)]
    assert [(0, True, {a: 1.0}), (0, True, {other: 7.0}), (1, False, {a: 4.0, c: 5.0}), (1, False, {})] == [
        (sample.round, sample.first, sample.values) for sample in samples[:4]
    ]
    assert [] == [*read_samples(tmp_path / "nowhere", {"a"})]


@pytest.mark.parametrize("how", [{"protocol": "HTTP/1.0"}, {"closes": True}], ids=["said", "unsaid"])
def test_a_server_that_closes(servers: list[Server], tmp_path: Path, how: dict[str, Any]) -> None:
    """A server that closes its connections, announced or not, gets new ones."""
    servers.append(Server("a 1\n", "a 2\n", "a 3\n", **how))

    sampler, lines = sampled(tmp_path, *servers)

    assert [[[0, 1.0]], [[0, 2.0]], [[0, 3.0]]] == [line["values"] for line in lines[:3]]
    assert [] == sampler.notes


def test_failures_are_noted(servers: list[Server], tmp_path: Path) -> None:
    """Consecutive failures have one line, and the next line has all series. Other servers are not delayed."""
    servers += [Server("a 1\n", None, None, "a 1\n", "<html>"), Server(*["b 1\n"] * 5)]

    sampler, lines = sampled(tmp_path, *servers)

    mine = [line for line in lines if not line["replica"]]
    assert [[[0, 1.0]], "the server answered 503 Service Unavailable", [[0, 1.0]], "invalid metric name:<html>"] == [
        line.get("failed") or line["values"] for line in mine
    ]
    assert [0, 1, 3, 4] == [line["round"] for line in mine]
    assert mine[2]["first"]
    assert sampler.rounds == len([line for line in lines if line["replica"]])
    (note,) = sampler.notes
    assert note.startswith("engine[0]: ")
    assert note.endswith(f"samples of {servers[0].url} failed, including the last: invalid metric name:<html>")


def test_a_target_that_does_not_exist(tmp_path: Path) -> None:
    """A target that does not exist is noted. A sampler that was never started can be stopped."""
    sampler = Sampler(Sources((Target("engine", 0, "http://127.0.0.1:9/metrics"),), every_s=60), tmp_path / "samples.jsonl")
    sampler.stop()
    sampler = Sampler(Sources((Target("engine", 0, "http://127.0.0.1:9/metrics"),), every_s=60), tmp_path / "samples.jsonl")
    sampler.start()
    sampler.stop()
    sampler.stop()

    (note,) = sampler.notes
    assert "failed, including the last: [Errno 111] Connection refused" in note


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("/dev/full", "full: all lines are lost: No space left on device"),
        ("no/where", "where: cannot be written: No such file or directory"),
    ],
)
def test_a_full_disk(servers: list[Server], tmp_path: Path, file: str, why: str) -> None:
    """Lines that cannot be written are noted, and the sampling continues."""
    servers.append(Server("a 1\n"))
    sampler = Sampler(Sources((Target("engine", 0, servers[0].url),)), tmp_path / file)
    sampler.start()
    sampler.stop()

    (note,) = sampler.notes
    assert why == re.sub(r"\d+ lines", "all lines", note)
