"""A session whose stack includes Prometheus, and which stays open until a test has asked that Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import yaml

from pytest_agentbench.records import Json
from tests.grafana_dashboard import queries_of
from tests.project import ALONE, ROOT
from tests.waits import wait_for

MONITORING = ROOT / "backends" / "monitoring"
PATIENCE = 120.0  # seconds for a boot, or until all series are there, on a busy machine

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="NOT TESTED with Prometheus: apt-get install prometheus"
)

#: Queries without a series if the stack is the Thompson router before built-in engines. Dynamo with its mockers has all of these.
NOT_IN_ENGINES = frozenset({
    *(f"frontend:{latency}_seconds:{percentile}_1m" for latency in ("ttft", "itl") for percentile in ("p50", "p95", "p99")),
    *("frontend:requests:rate1m", "frontend:requests_in_flight:sum", "frontend:requests_queued:sum"),
    *("frontend:prompt_tokens:rate1m", "frontend:output_tokens:rate1m", "frontend:prefix_cache_hits:ratio_rate1m"),
    *("router:requests_queued:sum", "router:overhead_seconds:mean_rate1m", "worker:preemptions:rate1m"),
})  # fmt: skip
#: Queries without a series if the stack is Dynamo with its mockers. The other stack has all of these.
NOT_IN_MOCKERS = frozenset({
    *("worker:output_tokens:rate1m", "worker:prefix_cache_hits:ratio_rate1m", "router:decisions:rate1m", "router:reward:last"),
})  # fmt: skip

#: A test that ends when the outer test has written a file.
HOLD = """
import time
from pathlib import Path

def test_hold():
    end = time.monotonic() + 600
    while time.monotonic() < end and not Path("asked").exists():
        time.sleep(0.05)
"""


def rules() -> list[Json]:
    """Returns the recording rules."""
    groups: list[Json] = yaml.safe_load((MONITORING / "rules.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def every_query() -> frozenset[str]:
    """Returns the queries of the dashboard, and the names of the recording rules."""
    dashboard = (MONITORING / "dashboard.json").read_text(encoding="utf-8")
    return frozenset(queries_of(dashboard)) | {rule["record"] for rule in rules()}


class Prometheus(NamedTuple):
    """A running Prometheus."""

    url: str

    def get(self, path: str) -> Any:
        """Returns the data of its answer to a request of its API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def query(self, query: str) -> list[Json]:
        """Returns the series of a query, as they are now."""
        series: list[Json] = self.get(f"query?query={quote(query)}")["result"]
        return series

    def without_series(self, queries: Iterable[str]) -> frozenset[str]:
        """Returns the queries for which it has no series."""
        return frozenset(query for query in queries if not self.query(query))

    def unhealthy_rules(self) -> list[str]:
        """Returns the names of the recording rules that it could not evaluate."""
        return [rule["name"] for group in self.get("rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]

    def ask_until_all(self, service: str, model: str, unknown: frozenset[str]) -> frozenset[str]:
        """Sends chats to a service until there is a series of each query of the dashboard and of each rule, except those in `unknown`.

        Returns the queries without a series. After the time limit, these are more than `unknown`.
        """
        wait_for(lambda: service in self.targets(), f"the first metrics of {service}", PATIENCE)
        url = f"http://{self.targets()[service][0]}/v1/chat/completions"
        text = "Is there a lamp in the shop? " * 20  # several blocks of a prefix cache
        body = json.dumps({"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": text}]}).encode()
        end = time.monotonic() + PATIENCE
        while True:
            urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=PATIENCE).close()
            missing = self.without_series(every_query())
            if missing <= unknown or time.monotonic() > end:
                return missing
            time.sleep(0.5)

    def targets(self) -> dict[str, list[str]]:
        """Returns service -> host and port of each replica whose metrics it can read. The service of the run has an empty name."""
        found: dict[str, list[str]] = {}
        for each in self.get("targets?state=active")["activeTargets"]:
            if each["health"] == "up":
                found.setdefault(each["labels"].get("service", ""), []).append(each["labels"]["instance"])
        return found


@contextmanager
def monitored_session(root: Path, base: str, *arguments: str) -> Iterator[Prometheus]:
    """Runs scenarios of banking on a stack that is based on `base` and includes Prometheus. Yields that Prometheus.

    The session serves its metrics. Its last test waits until the block ends. Fails if the session does not end with 0.
    """
    shutil.copytree(ROOT / "scenarios" / "banking", root / "scenarios" / "banking", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "scenarios" / "banking" / "test_hold.py").write_text(HOLD)
    (root / "backends").mkdir()
    stack = {"base": base, "include": "monitoring/prometheus.yaml", "thresholds": {"banking": {"tsq": 0.0, "tsq.mean": 0.0}}}
    (root / "backends" / "monitored.yaml").write_text(yaml.safe_dump(stack))
    (root / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", *ALONE, "scenarios/banking", "--agentbench-backend=monitored", "--agentbench-metrics-port=0"]
    with (root / "output").open("wb") as output:
        session = subprocess.Popen([*command, *arguments], cwd=root, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = wait_for(lambda: _url(root, session), "Prometheus", PATIENCE)
        yield Prometheus(url)
    finally:
        (root / "asked").touch()
        try:
            status = session.wait(PATIENCE)
        finally:
            session.kill()
    assert status in (0, 6, 7), (root / "output").read_text()


def _url(root: Path, session: subprocess.Popen[bytes]) -> str | None:
    """Returns the URL of the stack's Prometheus when the log of the stack has it."""
    assert session.poll() is None, (root / "output").read_text()
    logs = (log.read_text(errors="replace") for log in root.glob("reports/*/backend/stack_daemon.log"))
    return next((found[1] for text in logs if (found := re.search(r"prometheus is ready: (http://[\d.:]+)/", text))), None)
