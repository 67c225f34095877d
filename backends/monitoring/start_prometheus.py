"""Starts Prometheus for the services of a stack: `python start_prometheus.py OPTION... SERVICE/REPLICA=URL...`.

Each URL is the address of the metrics of one replica of a service. This script writes the configuration of Prometheus and is replaced by
`prometheus`. Each series gets the labels `service` and `replica`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RULES = Path(__file__).with_name("rules.yml")
INTERVAL = "2s"  # between two readings of a service, and between two evaluations of the rules


def configuration(targets: Iterable[str], run_metrics: str) -> dict[str, Any]:
    """Returns the configuration of Prometheus.

    `targets` are texts `SERVICE/REPLICA=URL`. `run_metrics` is a file with the address of the run's metrics, which may not exist yet.
    """
    run = {"job_name": "agentbench-run", "file_sd_configs": [{"files": [run_metrics], "refresh_interval": "5s"}]}
    return {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(RULES)],
        "scrape_configs": [run, *_jobs(targets)],
    }


def _jobs(targets: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the configuration of a job for each service. All replicas of a service have their metrics at the same path."""
    services: dict[str, dict[str, Any]] = {}
    for target in targets:
        name, _, address = target.partition("=")
        service, _, replica = name.partition("/")
        url = urlsplit(address)
        job = {"job_name": service, "scheme": url.scheme, "metrics_path": url.path, "static_configs": []}
        place = {"targets": [url.netloc], "labels": {"service": service, "replica": replica}}
        services.setdefault(service, job)["static_configs"].append(place)
    yield from services.values()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Starts Prometheus for the services of a stack.")
    parser.add_argument("--port", required=True, help="port of 127.0.0.1 at which Prometheus answers")
    parser.add_argument("--folder", required=True, type=Path, help="folder for the configuration and the data of Prometheus")
    parser.add_argument("--run-metrics", required=True, help="JSON file with the address of the run's metrics")
    parser.add_argument("targets", nargs="*", metavar="SERVICE/REPLICA=URL", help="metrics of a replica of a service")
    options = parser.parse_args()
    program = shutil.which("prometheus")
    if program is None:
        sys.exit(
            "start_prometheus.py: there is no program `prometheus` on the PATH; install it, for example with apt-get install prometheus"
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "prometheus.yml"
    file.write_text(json.dumps(configuration(options.targets, options.run_metrics), indent=1), encoding="utf-8")  # JSON is YAML
    arguments = (
        f"--config.file={file}",
        f"--storage.tsdb.path={options.folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{options.port}",
    )
    os.execv(program, [program, *arguments, "--log.level=warn"])
