"""The numbers of a run in the OpenMetrics format, which Prometheus reads too.

They are in metrics.txt, which GitLab compares with that of the target branch, and a session serves them while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.gate.exit_status import VERDICTS
from pytest_agentbench.metrics import registry
from pytest_agentbench.runs.run_file import Run

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

ARM = ("calls", "failed_calls", "busy_s")  # numbers of an arm that are not metrics of a session
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

Samples = Iterable[tuple[Mapping[str, str], float | None]]


def write(run: Run, directory: Path) -> Path:
    path = directory / "metrics.txt"
    path.write_bytes(text(run))
    return path


def text(run: Run, more: Iterable[Metric] = ()) -> bytes:
    """Returns the numbers of a run, with `more` metrics before them."""
    from prometheus_client.openmetrics.exposition import generate_latest

    written: bytes = generate_latest(_Run(run, more))  # type: ignore[no-untyped-call]  # The library is untyped.
    return written


class _Run:
    """A run as a registry of prometheus_client, which gets the metrics from `collect`."""

    def __init__(self, run: Run, more: Iterable[Metric]) -> None:
        self.run, self.more = run, more

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import StateSetMetricFamily

        run, performance = self.run, self.run.performance
        yield from self.more
        verdict = StateSetMetricFamily("agentbench_verdict", "The verdict of the session.")
        verdict.add_metric([], {name: name == run.verdict for name in VERDICTS})
        yield verdict
        yield from self._scores()
        yield gauge(
            "rollouts",
            "Rollouts by status.",
            (({"suite": name, "status": status}, count) for name, suite in run.suites.items() for status, count in suite.rollouts.items()),
        )
        for name in (*ARM, *registry.rates()):
            of_arms = (
                ({"arm": arm.name}, vars(arm)[name] if name in ARM else arm.metrics[name]) for arm in (run.ab.arms if run.ab else ())
            )
            yield gauge(f"arm_{name}", f"ab.arms.{name} of run.json.", of_arms)
        for latency in registry.latencies(compared=True):
            spread = performance.latency(latency)
            seconds = (({"statistic": name}, value / 1e3) for name in STATISTICS if (value := getattr(spread, name, None)) is not None)
            yield gauge(latency, f"{latency}, as docs/reference/metrics.md defines it.", seconds, unit="seconds")
        for name, value in {"calls": performance.calls, **{name: performance.number(name) for name in registry.rates()}}.items():
            yield gauge(name, f"performance.{name} of run.json.", [({}, value)])
        for name in registry.efficiency():
            of_suites = (({"suite": suite}, each.efficiency.metrics[name]) for suite, each in run.suites.items())
            yield gauge(name, f"efficiency.{name} of a suite of run.json.", of_suites)
        for name in registry.answers():
            answers = ((suite, score, each) for suite, result in run.suites.items() for score, each in result.answers.items())
            samples = (({"suite": suite, "score": score}, getattr(each, name)) for suite, score, each in answers)
            yield gauge(name, f"answers.{name} of a score of a suite of run.json.", samples)
        yield gauge(
            "failed_calls", "LLM calls that failed, by kind.", (({"kind": kind}, n) for kind, n in performance.failed_calls.items())
        )

    def _scores(self) -> Iterator[Metric]:
        """Yields three gauges: the means of all scores, and the lower and upper ends of their intervals."""
        scores = [
            ({"suite": name, "score": score, "better": (scale := suite.scales[score]).better, "unit": scale.unit}, means.mean)
            for name, suite in self.run.suites.items()
            for score, means in suite.scores.items()
            if means.mean
        ]
        for part, what in (("value", "Mean"), ("low", "Lower end of the 95 % interval"), ("high", "Upper end of the 95 % interval")):
            metric = "mean" if part == "value" else part
            yield gauge(
                f"score_{metric}",
                f"{what} of a score; `better` says which values are, and `unit` what they count.",
                ((labels, getattr(mean, part)) for labels, mean in scores),
            )


def gauge(name: str, about: str, samples: Samples, unit: str = "") -> Metric:
    """Returns a gauge of prometheus_client, whose name begins with `agentbench_`. Samples without a value are left out."""
    from prometheus_client.core import GaugeMetricFamily

    known = [(labels, value) for labels, value in samples if value is not None]
    metric = GaugeMetricFamily(f"agentbench_{name}", about, labels=[*known[0][0]] if known else [], unit=unit)
    for labels, value in known:
        metric.add_metric([*labels.values()], value)
    return metric
