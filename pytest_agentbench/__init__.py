"""Agent benchmarks as pytest suites: quality and serving performance from the same rollouts."""

from __future__ import annotations

from pytest_agentbench.records import Endpoint, LLMCall, Rollout, Score, ToolCall

__all__ = ["Endpoint", "LLMCall", "Rollout", "Score", "ToolCall"]
