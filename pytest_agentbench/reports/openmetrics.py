"""metrics.txt: the numbers of a run as OpenMetrics text, which GitLab compares with those of the target branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.gate.exit_status import VERDICTS
from pytest_agentbench.records import Json

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LATENCIES = ("ttft", "itl", "tpot", "e2e", "rollout")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

Samples = Iterable[tuple[Mapping[str, str], float | None]]


def write(run: Json, directory: Path) -> Path:
    path = directory / "metrics.txt"
    path.write_bytes(text(run))
    return path


def text(run: Json) -> bytes:
    from prometheus_client.openmetrics.exposition import generate_latest

    written: bytes = generate_latest(_Run(run))  # type: ignore[no-untyped-call]  # as the library has it
    return written


class _Run:
    """What prometheus_client takes for a registry."""

    def __init__(self, run: Json) -> None:
        self.run = run

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import StateSetMetricFamily

        run, performance = self.run, self.run["performance"]
        verdict = StateSetMetricFamily("agentbench_verdict", "The verdict of the session.")
        verdict.add_metric([], {name: name == run["verdict"] for name in VERDICTS})
        yield verdict
        scores = [
            ({"suite": name, "score": score}, found["mean"])
            for name, suite in run["suites"].items()
            for score, found in suite["scores"].items()
            if found["mean"]
        ]
        for part, what in (("value", "Mean"), ("low", "Lower end of the 95 % interval"), ("high", "Upper end of the 95 % interval")):
            metric = "mean" if part == "value" else part
            yield _gauge(f"score_{metric}", f"{what} of a score.", ((labels, mean[part]) for labels, mean in scores))
        yield _gauge(
            "rollouts",
            "Rollouts by status.",
            (
                ({"suite": name, "status": status}, count)
                for name, suite in run["suites"].items()
                for status, count in suite["rollouts"].items()
            ),
        )
        for latency in LATENCIES:
            found = performance[f"{latency}_ms"] or {}
            seconds = (({"statistic": name}, found[name] / 1e3) for name in STATISTICS if found.get(name) is not None)
            yield _gauge(latency, f"{latency}, as docs/metrics.md defines it.", seconds, unit="seconds")
        for name in ("calls", "output_tokens_per_s", "rollouts_per_hour", "prefix_cache_hit_ratio"):
            yield _gauge(name, f"performance.{name} of run.json.", [({}, performance[name])])
        yield _gauge(
            "failed_calls", "LLM calls that failed, by kind.", (({"kind": kind}, n) for kind, n in performance["failed_calls"].items())
        )


def _gauge(name: str, about: str, samples: Samples, unit: str = "") -> Metric:
    """Without the samples that have no value."""
    from prometheus_client.core import GaugeMetricFamily

    known = [(labels, value) for labels, value in samples if value is not None]
    metric = GaugeMetricFamily(f"agentbench_{name}", about, labels=[*known[0][0]] if known else [], unit=unit)
    for labels, value in known:
        metric.add_metric([*labels.values()], value)
    return metric
