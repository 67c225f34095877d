"""Builds the Grafana dashboard in backends/monitoring with Grafana's own library. `python -m tests.generated` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from pytest_agentbench.records import Json

TITLE = "pytest-agentbench: a run and its stack"
SOURCE = "datasource"  # the variable with which a user chooses the Prometheus
HEIGHT, WIDTH = 8, 8  # of a panel, in units of Grafana's grid, which is 24 wide

EACH_WORKER, EACH_SERVICE = "{{service}} {{replica}}", "{{service}}"


class Graph(NamedTuple):
    """One panel of the dashboard: a graph of one or more queries."""

    title: str
    unit: str  # a unit of Grafana
    queries: dict[str, str]  # query -> its legend


def percentiles(metric: str) -> dict[str, str]:
    """Returns the queries of a latency's percentiles, with their legends."""
    return {f"{metric}:{each}_1m": f"{{{{service}}}} {each}" for each in ("p50", "p95", "p99")}


ROWS: dict[str, list[Graph]] = {
    "Run": [
        Graph("Rollouts", "none", {"agentbench_rollouts": "{{suite}} {{status}}", "sum(agentbench_planned_rollouts)": "planned"}),
        Graph("Rollouts in flight", "none", {"agentbench_rollouts_in_flight": "in flight"}),
        Graph("Share of planned rollouts", "percentunit", {"run:rollouts_finished:ratio": "finished", "run:errors:ratio": "with an error"}),
        Graph("Speed", "cps", {"run:rollouts_finished:deriv1m": "rollouts", "run:calls:deriv1m": "LLM calls"}),
        Graph("Scores so far", "none", {"agentbench_score_mean": "{{suite}} {{score}}"}),
        Graph("TTFT of the run, by the tap", "s", {"agentbench_ttft_seconds": "{{statistic}}"}),
    ],
    "Frontend": [
        Graph("Requests", "reqps", {"frontend:requests:rate1m": EACH_SERVICE}),
        Graph(
            "Requests in flight",
            "none",
            {"frontend:requests_in_flight:sum": "{{service}} in flight", "frontend:requests_queued:sum": "{{service}} queued"},
        ),
        Graph(
            "Tokens",
            "cps",
            {"frontend:prompt_tokens:rate1m": "{{service}} prompts", "frontend:output_tokens:rate1m": "{{service}} answers"},
        ),
        Graph("TTFT", "s", percentiles("frontend:ttft_seconds")),
        Graph("ITL", "s", percentiles("frontend:itl_seconds")),
        Graph("Prefix cache hits, share of prompt tokens", "percentunit", {"frontend:prefix_cache_hits:ratio_rate1m": EACH_SERVICE}),
    ],
    "Workers": [
        Graph("Requests", "reqps", {"worker:requests:rate1m": EACH_WORKER}),
        Graph("Running requests", "none", {"worker:requests_running:sum": EACH_WORKER}),
        Graph("Waiting requests", "none", {"worker:requests_waiting:sum": EACH_WORKER}),
        Graph("KV cache in use", "percentunit", {"worker:kv_cache_usage:ratio": EACH_WORKER}),
        Graph("Prefix cache hits, share of prompt tokens", "percentunit", {"worker:prefix_cache_hits:ratio_rate1m": EACH_WORKER}),
        Graph("Preemptions", "cps", {"worker:preemptions:rate1m": EACH_WORKER}),
        Graph("Output tokens", "cps", {"worker:output_tokens:rate1m": EACH_WORKER}),
        Graph("TTFT p95", "s", {"worker:ttft_seconds:p95_1m": EACH_WORKER}),
        Graph("ITL p95", "s", {"worker:itl_seconds:p95_1m": EACH_WORKER}),
    ],
    "Router": [
        Graph("Requests", "reqps", {"router:requests:rate1m": EACH_SERVICE}),
        Graph("Queued requests", "none", {"router:requests_queued:sum": EACH_SERVICE}),
        Graph("Expected cache hits, share of a prompt", "percentunit", {"router:expected_cache_hits:mean_rate1m": EACH_SERVICE}),
        Graph("Time to choose a worker", "s", {"router:overhead_seconds:mean_rate1m": EACH_SERVICE}),
        Graph("Decisions of the Thompson router", "reqps", {"router:decisions:rate1m": "worker {{worker_id}}"}),
        Graph("Last reward of the Thompson router", "none", {"router:reward:last": "worker {{worker_id}}"}),
    ],
}


def dashboard_text() -> str:
    """Returns the JSON of the dashboard, as Grafana imports it."""
    source = DatasourceVariable(SOURCE).label("Prometheus").type("prometheus")
    board = Dashboard(TITLE).uid("pytest-agentbench").tags(["pytest-agentbench"]).refresh("5s").time("now-15m", "now")
    board = board.with_variable(source).editable()
    for name, graphs in ROWS.items():
        board = board.with_row(Row(name))
        for graph in graphs:
            board = board.with_panel(_panel(graph))
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(board.build())}\n"


def _panel(graph: Graph) -> Panel:
    source = DataSourceRef(type_val="prometheus", uid=f"${{{SOURCE}}}")
    panel = Panel().title(graph.title).unit(graph.unit).height(HEIGHT).span(WIDTH).datasource(source)
    for number, (query, legend) in enumerate(graph.queries.items()):
        panel = panel.with_target(Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + number)).datasource(source))
    return panel


def queries_of(dashboard: str) -> Iterator[str]:
    """Yields the queries in the JSON of a dashboard."""
    panels: list[Json] = json.loads(dashboard)["panels"]
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))
