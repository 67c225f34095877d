"""What other tools would have printed for the calls of a run, by their own definitions. A new one is a file here and a line in PEERS.

The definitions were read in the tools' sources: AIPerf 0.13.0, GuideLLM 0.8.1, vLLM 0.32, MLPerf Endpoints' reference client at
ea332753, and the NeMo Agent Toolkit's `throughput_analysis.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.records import LLMCall


class PeerTable(NamedTuple):
    """A tool's table under its own names."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[float | None]]  # name -> one value a column; fewer where the tool has no more
    differs: Sequence[str]  # sentences on how these numbers differ from ours


#: `peer(calls) -> Figures`; the calls are those of one run, failed ones included, and are looked at once.
Peer = Callable[[Iterable[LLMCall]], PeerTable]

PEERS: Mapping[str, str] = {
    "aiperf": "pytest_agentbench.metrics.other_tools.aiperf:aiperf",
    "guidellm": "pytest_agentbench.metrics.other_tools.guidellm:guidellm",
    "mlperf": "pytest_agentbench.metrics.other_tools.mlperf:mlperf",
    "nat": "pytest_agentbench.metrics.other_tools.nat:nat",
    "vllm-bench": "pytest_agentbench.metrics.other_tools.vllm_bench:vllm_bench",
}


def load_peer(name: str) -> Peer:
    """The function behind a tool's name; raises ConfigError for an unknown one, with the known ones."""
    peer: Peer = load_object("tool", name, PEERS, Path())
    return peer
