"""How fast a simulated worker is: what a run measured, as lines that the simulator reads.

Its own model, polynomials of some GPU, makes an answer faster where the KV cache is larger, so it cannot tell what blocks are worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_agentbench.metrics.columns import FrameTable

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats

FAR = 1e6  # tokens; beyond what a step has


@dataclass(frozen=True)
class StepLine:
    """Milliseconds that a step takes: so many, and so many for each token."""

    base_ms: float
    per_token_ms: float

    def at(self, tokens: Floats) -> Floats:
        return self.base_ms + self.per_token_ms * tokens


@dataclass(frozen=True)
class WorkerSpeed:
    """Of one worker."""

    prefill: StepLine  # of the prompt tokens that are in no cache
    decode: StepLine  # of the tokens, prompts and answers, of all calls that are being answered

    def write(self, path: Path) -> None:
        """As the profile that the simulator takes (`planner_profile_data`): tables, between whose points it draws lines."""
        tokens, contexts = np.array([0.0, FAR]), np.array([1.0, FAR])
        np.savez(
            path,
            prefill_isl=tokens,
            prefill_ttft_ms=self.prefill.at(tokens),
            decode_active_kv_tokens=tokens,
            decode_context_length=contexts,
            decode_itl=np.repeat(self.decode.at(tokens)[:, None], len(contexts), axis=1),
        )


def measured_timing(calls: FrameTable, workers: int) -> WorkerSpeed | None:
    """How fast each of so many workers was; None where no call has both a first token and others.

    Reading prompts: TTFT less one step of decoding (the simulator's first token takes one, too), of those calls beside which the fewest
    others waited for their first token, by the prompt tokens that were in no cache. Decoding: TPOT, by the tokens of all calls that were
    being answered in the middle of this one, shared by the workers.
    """
    known = calls.where(~np.isnan(calls["ttft_ms"]) & ~np.isnan(calls["tpot_ms"]) & ~np.isnan(calls["prompt_tokens"]))
    if not len(known):
        return None
    sent, first, ended = known["sent_s"], known["sent_s"] + known["ttft_ms"] / 1e3, known["ended_s"]
    contexts = known["prompt_tokens"] + known["output_tokens"] / 2
    under_way = totals(first, ended, contexts, (first + ended) / 2)
    beside = _beside(sent, first)
    alone = beside <= np.quantile(beside, 0.25)
    uncached = np.where(np.isnan(known["cached_tokens"]), 0.0, known["prompt_tokens"] - known["cached_tokens"])
    return WorkerSpeed(
        prefill=resistant_line(uncached[alone], np.maximum(0.0, known["ttft_ms"] - known["tpot_ms"])[alone]),
        decode=resistant_line(under_way / workers, known["tpot_ms"]),
    )


def totals(begins: Floats, ends: Floats, weights: Floats, instants: Floats) -> Floats:
    """At each instant the weights of all spans that have begun by then and not ended, together."""
    return _before(begins, weights, instants) - _before(ends, weights, instants)


def _before(stamps: Floats, weights: Floats, instants: Floats) -> Floats:
    """The weights of the stamps up to each instant, together."""
    order = np.argsort(stamps)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    counted: Floats = sums[np.searchsorted(stamps[order], instants, side="right")]
    return counted


def _beside(begins: Floats, ends: Floats) -> Floats:
    """How many other spans each of them overlaps."""
    begun = np.searchsorted(np.sort(begins), ends, side="right")
    over = np.searchsorted(np.sort(ends), begins, side="left")
    others: Floats = (begun - over - 1).astype(float)
    return others


def resistant_line(x: Floats, y: Floats) -> StepLine:
    """Through the medians of the third with the least x and of the third with the greatest (Tukey 1977), never falling.

    It is level where x hardly varies, and goes through zero where it would begin below.
    """
    least, greatest = x <= np.quantile(x, 1 / 3), x >= np.quantile(x, 2 / 3)
    width, rise = (float(np.median(each[greatest]) - np.median(each[least])) for each in (x, y))
    slope = max(0.0, rise / width) if width > 0 else 0.0
    base = float(np.median(y - slope * x))
    if base < 0:
        return StepLine(0.0, float(np.median(y) / np.median(x)))
    return StepLine(base, slope)
