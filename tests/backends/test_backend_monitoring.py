"""backends/monitoring: the configuration of Prometheus, the recording rules and the Grafana dashboard."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_agentbench.metrics import registry
from tests.grafana_dashboard import TITLE, queries_of
from tests.monitored_session import MONITORING, needs_prometheus, rules
from tests.project import ROOT

PROGRAM = MONITORING / "start_prometheus.py"
PAGE = ROOT / "docs" / "backends/monitoring.md"
DASHBOARD = MONITORING / "dashboard.json"
TARGETS = ["engine/0=http://127.0.0.1:9001/metrics", "engine/1=http://127.0.0.1:9002/metrics", "cluster/0=https://host:9003/numbers"]


def configuration() -> dict[str, Any]:
    written: dict[str, Any] = runpy.run_path(str(PROGRAM))["configuration"](TARGETS, "/run/run-metrics.json")
    return written


def test_a_job_for_each_service() -> None:
    """Each service is a job with its path, and each replica a target with the labels `service` and `replica`. The run is a job, too."""
    run, engine, cluster = configuration()["scrape_configs"]

    assert ["/run/run-metrics.json"] == run["file_sd_configs"][0]["files"]
    assert ("engine", "http", "/metrics") == (engine["job_name"], engine["scheme"], engine["metrics_path"])
    assert [
        {"targets": ["127.0.0.1:9001"], "labels": {"service": "engine", "replica": "0"}},
        {"targets": ["127.0.0.1:9002"], "labels": {"service": "engine", "replica": "1"}},
    ] == engine["static_configs"]
    assert ("cluster", "https", "/numbers") == (cluster["job_name"], cluster["scheme"], cluster["metrics_path"])


@needs_prometheus
def test_promtool(tmp_path: Path) -> None:
    """Prometheus' own tool accepts the rules, the configuration of a stack, and the configuration on the page."""
    stack = tmp_path / "stack.yml"
    stack.write_text(json.dumps(configuration()))
    (tmp_path / "rules.yml").write_bytes((MONITORING / "rules.yml").read_bytes())
    page = tmp_path / "page.yml"
    page.write_text(re.findall(r"```yaml\n# prometheus.yml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0])
    checks = [subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True, check=False) for file in (stack, page)]

    assert [0, 0] == [each.returncode for each in checks], [each.stdout + each.stderr for each in checks]
    assert all(f"{len(rules())} rules found" in each.stdout for each in checks)


def test_names() -> None:
    """Queries of the dashboard use recorded series and metrics that a run has. The page lists each recorded series."""
    recorded = {rule["record"] for rule in rules()}
    latencies = {f"agentbench_{name}_seconds" for name in registry.latencies(compared=True)}
    counts = {f"agentbench_{name}" for name in ("rollouts", "planned_rollouts", "rollouts_in_flight", "score_mean")}
    used = {re.sub(r"^sum\((.*)\)$", r"\1", query) for query in queries_of(DASHBOARD.read_text(encoding="utf-8"))}
    listed = set(re.findall(r"`((?:frontend|worker|router|run):[^`]+)`", PAGE.read_text(encoding="utf-8")))

    assert set() == used - recorded - latencies - counts
    assert recorded == listed
    assert recorded <= used | {"run:rollouts_finished:sum"}
    assert TITLE == json.loads(DASHBOARD.read_text(encoding="utf-8"))["title"]


def test_without_prometheus(tmp_path: Path) -> None:
    """If Prometheus is not installed, the program ends with a sentence on how to get it."""
    arguments = ("--port=1", f"--folder={tmp_path}", "--run-metrics=x")
    done = subprocess.run([sys.executable, PROGRAM, *arguments], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)

    assert (1, "") == (done.returncode, done.stdout)
    assert "there is no program `prometheus` on the PATH; install it, for example with apt-get install prometheus" in done.stderr
