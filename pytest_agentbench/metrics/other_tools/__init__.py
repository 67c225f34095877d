"""Computes the metrics that other tools would report for the calls of a run. A new tool needs a module here and an entry in PEERS.

The definitions are from the source code of the tools: AIPerf 0.13.0, GuideLLM 0.8.1, vLLM 0.32, MLPerf Endpoints' reference client at
ea332753, and the NeMo Agent Toolkit's `throughput_analysis.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.records import LLMCall


class PeerTable(NamedTuple):
    """The metrics of a run as another tool would report them: a table with the names that the tool uses."""

    title: str  # name and version of the tool
    columns: Sequence[str]  # names of the columns
    rows: Mapping[str, Sequence[float | None]]  # name -> a value for each column, or only one value
    differs: Sequence[str]  # sentences on differences from the metrics of this package


#: Function of a tool. Its argument has all calls of a run, failed ones included, and is iterated once.
Peer = Callable[[Iterable[LLMCall]], PeerTable]

PEERS: Mapping[str, str] = {
    "aiperf": "pytest_agentbench.metrics.other_tools.aiperf:aiperf",
    "guidellm": "pytest_agentbench.metrics.other_tools.guidellm:guidellm",
    "mlperf": "pytest_agentbench.metrics.other_tools.mlperf:mlperf",
    "nat": "pytest_agentbench.metrics.other_tools.nat:nat",
    "vllm-bench": "pytest_agentbench.metrics.other_tools.vllm_bench:vllm_bench",
}


def load_peer(name: str) -> Peer:
    """Returns the function that computes the table of a tool. Raises ConfigError with the known tools for an unknown name."""
    peer: Peer = load_object("tool", name, PEERS, Path())
    return peer
