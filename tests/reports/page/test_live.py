"""The server of the live page, without a browser."""

from __future__ import annotations

import fcntl
import http.client
import json
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.cli.watch import find
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports.page import live
from pytest_agentbench.reports.page.live import LiveRun, Loopback, newest
from pytest_agentbench.runs.journal import FILE, record_line
from pytest_agentbench.runs.run_file import write_run
from tests.made_runs import run_directory, run_of
from tests.reports.page.conftest import rollout
from tests.web import serving


def journal(directory: Path, *rollouts: Rollout) -> Path:
    """Appends records to the journal of a run that has not ended."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / FILE).open("ab") as file:
        file.write(b"".join(sealed(record_line(each)) + b"\n" for each in rollouts))
    return directory


def news(run: LiveRun, before: Any = None) -> Any:
    """Returns the next news for a page that has received the previous ones."""
    before = before or {"generation": "", "state": "", "count": 0}
    found = json.loads(run.news(before["generation"], before["state"], before["count"]))
    if not found:
        return found
    return {**found, "count": len(found["rows"]) + (before["count"] if found["generation"] == before["generation"] else 0)}


def status(server: Loopback, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    found = connection.getresponse().status
    connection.close()
    return found


def test_rows_are_sent_once(tmp_path: Path) -> None:
    """Each row is sent once, an incomplete record only when it is complete. Without news, the answer is empty."""
    run = LiveRun(journal(tmp_path / "run", rollout("a", 0.5)))
    line = sealed(record_line(rollout("b")))
    with (tmp_path / "run" / FILE).open("ab") as file:
        file.write(line[:100])
        file.flush()
        first = news(run)
        second = news(run, first)
        file.write(line[100:] + b"\n")
    third = news(run, first)

    assert ["a"] == [row[0] for row in first["rows"]]
    assert {} == second
    assert ["b"] == [row[0] for row in third["rows"]]
    assert "Is there a lamp, b?" in run.rollout(1)


def test_the_phases_of_a_run(tmp_path: Path) -> None:
    """A run is running while a session holds the lock of its journal, stopped without one, and ended when its run.json exists."""
    directory = journal(tmp_path / "run", rollout("a", 0.25))
    with (directory / FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = LiveRun(directory)
        running = news(run)
    (directory / "sessions.jsonl").touch()  # a session that was killed
    stopped = news(run, running)
    write_run(run_of(rollout("a", 0.25), id="run"), directory)
    ended = news(run, stopped)

    assert ["running", "stopped", "ended"] == [each["phase"] for each in (running, stopped, ended)]
    assert "running, 1 rollout finished" in running["first"]
    assert "--agentbench-resume=run" in stopped["first"]
    assert "PASS" in ended["first"]
    assert 1 == ended["count"]  # sent again, because now the thresholds are known
    assert {} == news(run, ended)


def test_a_repeated_rollout_counts_once(tmp_path: Path) -> None:
    """If a rollout has two records, the last one is in the means and distributions."""
    directory = journal(tmp_path / "run", rollout("a", 0.0), rollout("b", 1.0), rollout("a", 1.0))
    found = news(LiveRun(directory))

    assert "2 rollouts finished" in found["first"]
    assert '<p class="value">1.000</p>' in found["first"]
    assert 2 == sum(count for _, count in found["distributions"]["shop"]["ttft"])


def test_many_rows_are_sent_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer has a limited number of rows, and says if there are more. Damaged lines are counted."""
    monkeypatch.setattr(live, "AT_ONCE", 2)
    directory = journal(tmp_path / "run", *(rollout(f"s-{number}") for number in range(3)))
    with (directory / FILE).open("ab") as file:
        file.write(b"{}\n")
    run = LiveRun(directory)
    first = news(run)
    second = news(run, first)

    assert ([2, True], [1, 1]) == ([len(first["rows"]), first["more"]], [len(second["rows"]), second["damaged"]])


def test_requests_without_the_token_are_refused(tmp_path: Path) -> None:
    """Without the token, with another Host header, or for an unknown path, the answer is only an error."""
    with serving(Loopback(LiveRun(journal(tmp_path / "run", rollout("a"))))) as server:
        own = f"/{server.token}/"
        found = [
            status(server, own),
            status(server, f"{own}news?generation=&state=&after=0"),
            status(server, f"{own}rollout?number=0"),
            status(server, "/"),
            status(server, "/guess/"),
            status(server, f"/{server.token}"[:-1]),
            status(server, f"{own}../../etc/passwd"),
            status(server, f"{own}rollout?number=1"),
            status(server, f"{own}rollout?number=x"),
            status(server, own, Host="evil.example"),
            status(server, own, Host=f"evil.example:{server.server_port}"),
            status(server, own, method="POST"),
        ]

    assert [200, 200, 200, 404, 404, 404, 404, 404, 404, 403, 403, 501] == found
    assert "127.0.0.1" == server.server_address[0]


def test_a_burst_of_connections(tmp_path: Path) -> None:
    """Fifty connections are established before the server accepts the first one, so none of them has to be repeated."""
    with Loopback(LiveRun(journal(tmp_path / "run", rollout("a")))) as server, ExitStack() as burst:
        for _ in range(50):
            burst.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=10))


def test_the_page_may_only_request_its_server(tmp_path: Path) -> None:
    """The policy of the live page has one more permission than that of the file."""
    text = LiveRun(journal(tmp_path / "run", rollout("a"))).page()

    assert text.count("connect-src 'self'; base-uri 'none'") == 1


def test_a_removed_run(tmp_path: Path) -> None:
    """If the run was removed, the page gets an error message."""
    directory = journal(tmp_path / "run", rollout("a"))
    with serving(Loopback(LiveRun(directory))) as server:
        (directory / FILE).unlink()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("GET", f"/{server.token}/news?generation=&state=&after=0")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()

    assert 500 == answer.status
    assert "No such file" in text


def test_which_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name, the run that was written to last is watched. Without any run, the error is one sentence."""
    assert 4 == main(["watch", "--reports", str(tmp_path)])
    assert "there is no run in" in capsys.readouterr().err
    run_directory(tmp_path / "20260101-000000", rollout("a"))
    journal(tmp_path / "20250101-000000", rollout("a"))
    assert tmp_path / "20250101-000000" == newest(tmp_path)
    assert 4 == main(["watch", "20250101-00000", "--reports", str(tmp_path)])
    assert "no run '20250101-00000'" in capsys.readouterr().err


def test_finding_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run is found by its path, the path of its journal, or its name. For anything else, the error is one sentence."""
    directory = journal(tmp_path / "20250101-000000-night", rollout("a"))
    names = (str(directory), str(directory / FILE), directory.name, "night")

    assert [directory] * 4 == [find(name, tmp_path) for name in names]
    assert 4 == main(["watch", str(tmp_path)])
    assert "has no rollouts.jsonl: it is not a run directory" in capsys.readouterr().err
