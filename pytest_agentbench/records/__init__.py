"""The frozen records that move from left to right: what a rollout did, when, and how good it was.

Times that end in `_ns` are `time.monotonic_ns()` of this machine; only differences mean anything.
"""

from pytest_agentbench.records.call import ERROR_KINDS, JUDGE, OUTPUT_KINDS, Access, Chunk, Endpoint, LLMCall, ToolCall, split_calls
from pytest_agentbench.records.common import MOST_TRIALS, OPEN, SAMPLING, SHARED, Json
from pytest_agentbench.records.rollout import (
    EVALUABLE,
    LARGEST_SCORE,
    SHARE,
    STATUSES,
    UNDECLARED,
    Answer,
    Attempt,
    Draft,
    Program,
    Rollout,
    RolloutKey,
    Scale,
    Score,
    Verification,
    arm_of,
    is_score,
    scale_in,
    suite_of,
)

__all__ = [
    "ERROR_KINDS",
    "EVALUABLE",
    "JUDGE",
    "LARGEST_SCORE",
    "MOST_TRIALS",
    "OPEN",
    "OUTPUT_KINDS",
    "SAMPLING",
    "SHARE",
    "SHARED",
    "STATUSES",
    "UNDECLARED",
    "Access",
    "Answer",
    "Attempt",
    "Chunk",
    "Draft",
    "Endpoint",
    "Json",
    "LLMCall",
    "Program",
    "Rollout",
    "RolloutKey",
    "Scale",
    "Score",
    "ToolCall",
    "Verification",
    "arm_of",
    "is_score",
    "scale_in",
    "split_calls",
    "suite_of",
]
