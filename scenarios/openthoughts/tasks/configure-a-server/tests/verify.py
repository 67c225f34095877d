"""Checks whether nginx, with the agent's configuration, answers correctly. It runs as www-data, which cannot write the reward."""

from __future__ import annotations

import json
import pwd
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, "/tests")
from checks import small_text, verify  # noqa: E402

WWW = pwd.getpwnam("www-data")
FOLDER = Path("/run/site")
START = 40  # seconds

PAGES = {
    "/": "<!doctype html><title>Home</title><p>Welcome.\n",
    "/index.html": "<!doctype html><title>Home</title><p>Welcome.\n",
    "/about": "<!doctype html><title>About</title><p>About us.\n",
    "/about.html": "<!doctype html><title>About</title><p>About us.\n",
}
MISSING = "<!doctype html><title>Not here</title><p>There is no such page.\n"
ASSET = 'console.log("site")\n'
AGENT = 'tests "of" \\ the site'

#: What the application was asked.
asked: list[dict[str, object]] = []


class Application(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked.append({"method": self.command, "path": self.path, "headers": headers, "body": len(body)})
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def get(path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", 8080, timeout=10)
    try:
        headers = {"User-Agent": AGENT, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def it_starts() -> None:
    small_text("/srv/site/nginx.conf")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(mode=0o755)
    shutil.chown(FOLDER, WWW.pw_uid, WWW.pw_gid)
    global server  # noqa: PLW0603 - ended below
    server = subprocess.Popen(
        ["/usr/sbin/nginx", "-c", "/srv/site/nginx.conf", "-g", "daemon off;"],
        user=WWW.pw_uid,
        group=WWW.pw_gid,
        extra_groups=[],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline, pid_file = time.monotonic() + START, FOLDER / "nginx.pid"
    while time.monotonic() < deadline:
        if server.poll() is not None:
            assert server.stderr is not None
            raise AssertionError(f"nginx ended with {server.returncode}: {server.stderr.read()[-300:]}")
        with socket.socket() as probe:
            listens = probe.connect_ex(("127.0.0.1", 8080)) == 0
        if listens and pid_file.is_file() and pid_file.stat().st_size:  # nginx writes it after it has begun to listen
            break
        time.sleep(0.05)
    else:
        raise AssertionError("nothing listens on 127.0.0.1:8080, or there is no /run/site/nginx.pid")
    pid = small_text("/run/site/nginx.pid").strip()
    assert pid == str(server.pid), f"nginx.pid has {pid}, nginx is {server.pid}"


def pages_are_there() -> None:
    for path, content in PAGES.items():
        answer, text = get(path)
        assert (200, content) == (answer.status, text), f"{path} is answered with {answer.status} {text[:60]!r}"
    answer, text = get("/assets/app.js")
    assert (200, ASSET) == (answer.status, text), f"/assets/app.js is answered with {answer.status}"


def what_is_not_there_is_404() -> None:
    hidden = ("/.env", "/.git/config", "/.well-hidden/config", "/assets/.hidden", "/.nothing", "/api/.git/config", "/old/.env", "/%2eenv")
    for path in ("/nothing", "/assets/nothing.js", "/about/nothing", *hidden):
        answer, text = get(path)
        assert (404, MISSING) == (answer.status, text), f"{path} is answered with {answer.status} {text[:60]!r}"


def caches_are_told() -> None:
    wanted = {"/assets/app.js": "public, max-age=31536000, immutable", "/": "no-cache", "/about": "no-cache"}
    for path, value in wanted.items():
        found = [value for name, value in get(path)[0].getheaders() if name.lower() == "cache-control"]
        assert [value] == found, f"{path} has Cache-Control {found}"


def old_paths_lead_on() -> None:
    for path, target in {"/old/a/b?x=1&y=2": "/a/b?x=1&y=2", "/old/about": "/about"}.items():
        answer, _ = get(path)
        place = (answer.getheader("Location") or "").removeprefix("http://127.0.0.1:8080").removeprefix("http://127.0.0.1")
        assert (301, target) == (answer.status, place), f"{path} is answered with {answer.status} and Location {place!r}"


def the_application_is_asked() -> None:
    asked.clear()
    answer, text = get("/api/users/7?full=1", Host="shop.example:8080", X_Forwarded_For="10.9.8.7")
    assert (200, "ok") == (answer.status, text), f"/api/users/7 is answered with {answer.status}"
    (call,) = asked
    headers = call["headers"]
    assert isinstance(headers, dict)
    assert call["path"] == "/users/7?full=1", f"the application is asked for {call['path']}"
    assert headers.get("host") == "shop.example:8080", f"the application sees Host {headers.get('host')}"
    assert headers.get("x-forwarded-for") == "127.0.0.1", f"the application sees X-Forwarded-For {headers.get('x-forwarded-for')}"


def large_bodies_are_refused() -> None:
    asked.clear()
    answer, _ = get("/api/upload", "POST", b"x" * (1 << 20))
    assert answer.status == 200, f"a body of 1 MiB is answered with {answer.status}"
    answer, _ = get("/api/upload", "POST", b"x" * ((1 << 20) + 1))
    assert answer.status == 413, f"a body of 1 MiB and a byte is answered with {answer.status}"
    assert [1 << 20] == [call["body"] for call in asked], "the application got a body that is too large"


def no_version_is_told() -> None:
    for path in ("/", "/nothing", "/api/x", "/old/x"):
        answer, text = get(path)
        told = f"{answer.getheader('Server')} {text}"
        assert "nginx/" not in told, f"{path} tells {told[:80]!r}"


def requests_are_logged() -> None:
    path = '/logged?q="1"'
    get(path)
    deadline = time.monotonic() + START
    lines: list[str] = []
    while time.monotonic() < deadline and not any("/logged" in line for line in lines):
        time.sleep(0.05)
        lines = (FOLDER / "access.log").read_text().splitlines() if (FOLDER / "access.log").is_file() else []
    entries = [json.loads(line) for line in lines]
    entry = next((each for each in entries if str(each.get("path", "")).startswith("/logged")), None)
    assert entry is not None, f"the request is not in access.log: {lines[-1:]}"
    assert {"method": "GET", "path": path, "status": 404, "agent": AGENT} == entry, f"it is logged as {entry}"


server: subprocess.Popen[str] | None = None
application = ThreadingHTTPServer(("127.0.0.1", 9000), Application)
threading.Thread(target=application.serve_forever, daemon=True).start()
try:
    verify(
        it_starts,
        pages_are_there,
        what_is_not_there_is_404,
        caches_are_told,
        old_paths_lead_on,
        the_application_is_asked,
        large_bodies_are_refused,
        no_version_is_told,
        requests_are_logged,
    )
finally:
    if server is not None:
        server.kill()
