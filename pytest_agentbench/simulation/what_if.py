"""Simulates a run with other settings, by replaying its trace with workers as fast as the measured ones.

The run's own setting is simulated too. Its error against the measurement shows how far the other results can be trusted.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import mooncake
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.records import Json
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.simulation.figures import (
    MEASURES,
    Figures,
    SettingMetric,
    distance,
    measured,
    ranks,
    replayable,
    simulated,
    supported,
)
from pytest_agentbench.simulation.replay import (
    ENVIRONMENT,
    MEASURED,
    MOCKER,
    Question,
    Setting,
    Simulator,
    close_loop,
    facts_of,
    grid,
    missing,
)

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats


FAR = 1e6  # tokens, more than a step can have


@dataclass(frozen=True)
class StepLine:
    """A linear model of an engine step: its duration in milliseconds grows with its tokens."""

    base_ms: float
    per_token_ms: float

    def at(self, tokens: Floats) -> Floats:
        return self.base_ms + self.per_token_ms * tokens


@dataclass(frozen=True)
class WorkerSpeed:
    """The speed of one worker of a stack: how long prefill and decoding steps take."""

    prefill: StepLine  # duration over uncached prompt tokens
    decode: StepLine  # duration over the tokens (prompts and answers) of all calls that are being answered

    def write(self, path: Path) -> None:
        """Writes the profile that the simulator reads (`planner_profile_data`): tables between whose points it interpolates linearly."""
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
    """Returns the measured speed of each worker, or None if no call has both a first token and further ones.

    - The duration of a prefill is TTFT less one decoding step, because the simulator's first token takes one, too. It depends on the
      uncached prompt tokens. Only the quarter of calls is used that overlapped with the fewest other calls waiting for a first token.
    - The duration of a decoding step is TPOT. It depends on the tokens per worker of all calls that were being answered in the middle of
      the call.
    """
    known = calls.where(~np.isnan(calls["ttft_ms"]) & ~np.isnan(calls["tpot_ms"]) & ~np.isnan(calls["prompt_tokens"]))
    if not len(known):
        return None
    sent, first, ended = known["sent_s"], known["sent_s"] + known["ttft_ms"] / 1e3, known["ended_s"]
    contexts = known["prompt_tokens"] + known["output_tokens"] / 2
    under_way = totals(first, ended, contexts, (first + ended) / 2)
    overlaps = _overlaps(sent, first)
    alone = overlaps <= np.quantile(overlaps, 0.25)
    uncached = np.where(np.isnan(known["cached_tokens"]), 0.0, known["prompt_tokens"] - known["cached_tokens"])
    return WorkerSpeed(
        prefill=resistant_line(uncached[alone], np.maximum(0.0, known["ttft_ms"] - known["tpot_ms"])[alone]),
        decode=resistant_line(under_way / workers, known["tpot_ms"]),
    )


def totals(begins: Floats, ends: Floats, weights: Floats, instants: Floats) -> Floats:
    """Returns, for each instant, the total weight of the spans (such as calls, with their tokens) that have begun but not ended."""
    return _before(begins, weights, instants) - _before(ends, weights, instants)


def _before(times: Floats, weights: Floats, instants: Floats) -> Floats:
    """Returns, for each instant, the sum of the weights of all `times` that are not after it."""
    order = np.argsort(times)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    counted: Floats = sums[np.searchsorted(times[order], instants, side="right")]
    return counted


def _overlaps(begins: Floats, ends: Floats) -> Floats:
    """Returns the number of other spans that each span overlaps."""
    begun = np.searchsorted(np.sort(begins), ends, side="right")
    over = np.searchsorted(np.sort(ends), begins, side="left")
    others: Floats = (begun - over - 1).astype(float)
    return others


def resistant_line(x: Floats, y: Floats) -> StepLine:
    """Returns a line fitted to points: through the medians of the lowest and of the highest third of x (Tukey 1977). It never falls.

    The line is level if x hardly varies, and goes through zero if it would begin below.
    """
    least, greatest = x <= np.quantile(x, 1 / 3), x >= np.quantile(x, 2 / 3)
    width, rise = (float(np.median(each[greatest]) - np.median(each[least])) for each in (x, y))
    slope = max(0.0, rise / width) if width > 0 else 0.0
    base = float(np.median(y - slope * x))
    if base < 0:
        return StepLine(0.0, float(np.median(y) / np.median(x)))
    return StepLine(base, slope)


SCHEMA = "agentbench-what-if/1"  # docs/compare/what-if.md describes it


@dataclass(frozen=True)
class SettingEstimate:
    """A setting with its simulated metrics."""

    setting: Setting
    own: bool  # whether it is the setting of the run
    figures: Figures
    ranks: Mapping[str, int]  # metric -> place among the settings; metrics that rank nothing are missing


@dataclass(frozen=True)
class WhatIf:
    """The result of a simulation: the metrics of a run's calls with other settings."""

    schema: str  # `agentbench-what-if/1`
    run: str  # name of the run
    calls: int  # number of replayed calls
    left_out: int  # number of calls that failed, or have no known time
    objectives_ms: Mapping[str, float]  # objective -> milliseconds
    timing: WorkerSpeed | str  # speed of one worker, `mocker`, or path of a profile
    lacking: Sequence[str]  # unknown parts of the run's own setting
    measured: Figures  # measured metrics of the run
    own: SettingEstimate | None  # simulation of the run's own setting; None if that is unknown
    off: Mapping[str, float]  # metric -> error of the own setting's simulation; in JSON 0.17 is 17 %, null is beyond any ratio
    answers: Sequence[SettingEstimate]  # all simulated settings, including the run's own if it is known

    @property
    def measures(self) -> list[SettingMetric]:
        """The metrics that are known for at least one simulated setting."""
        return [each for each in MEASURES if any(answer.figures.value(each) is not None for answer in self.answers)]

    def as_json(self) -> Json:
        """Returns the result as JSON. The error of the simulation (`off`) is relative (0.17: 17 %), or a difference for shares."""
        shares = {each.name for each in self.measures if each.share}
        off = {name: size if name in shares else math.expm1(size) for name, size in self.off.items()}
        return {**asdict(self), "off": {name: size if math.isfinite(size) else None for name, size in off.items()}}


def ask(directory: Path, run: Run, question: Question, on_setting: Callable[[str], None] = lambda _: None) -> WhatIf:
    """Simulates a run with each stack setting that `question` (the input of `agentbench what-if`) names, and returns the metrics.

    Calls `on_setting` with a text before each setting.

    Raises ConfigError if the run or the question is not suitable, and the errors of Simulator.
    """
    resolve_python(ENVIRONMENT, directory)  # Raises MissingError before anything slow begins
    if run.backend.kind == "ab":
        raise ConfigError(f"{directory} has several arms, each with its own stack; run the suite with one of them, and simulate that run")
    objectives = supported(run.settings.slo if question.objectives is None else question.objectives)
    facts = {**facts_of(run.backend), **question.original}
    own, settings = Setting.of(facts), grid(question.workers, question.kv_blocks, question.routers, facts)
    settings = settings if own is None or own in settings else [own, *settings]
    chosen = ChosenRuns([directory])
    all_calls, calls = chosen.tables.calls, replayable(chosen.tables.calls)
    if not len(calls):
        raise ConfigError(f"{directory} has no successful agent call with a known time, so there is nothing to replay")
    _refuse_small(settings, calls)
    timing = _timing(question.timing, calls, own)
    with tempfile.TemporaryDirectory(prefix="agentbench-what-if-") as folder:
        simulator = _simulator(chosen, Path(folder), timing, objectives, question.limit_s)
        figures = {}
        for setting in settings:
            on_setting(setting.text)
            figures[setting] = simulated(simulator.report(setting), len(calls), objectives)
    what_if = WhatIf(
        schema=SCHEMA,
        run=run.id,
        calls=len(calls),
        left_out=int((all_calls["measured"] & (all_calls["kind"] == "scenario")).sum()) - len(calls),
        objectives_ms=objectives,
        timing=timing,
        lacking=missing(facts),
        measured=measured(calls, objectives, run.serving.prefix_cache.hit_ratio if run.serving else None),
        own=SettingEstimate(own, own=True, figures=figures[own], ranks={}) if own else None,
        off={},
        answers=[SettingEstimate(each, own=each == own, figures=figures[each], ranks={}) for each in settings],
    )
    return ranked(what_if)


def _refuse_small(settings: Sequence[Setting], calls: FrameTable) -> None:
    """Raises ConfigError if a cache is too small for the largest call, because the simulator would refuse it or wait for ever."""
    largest = int(np.nanmax(calls["prompt_tokens"] + calls["output_tokens"])) if not np.isnan(calls["prompt_tokens"]).all() else 0
    for setting in settings:
        if setting.cache_tokens < largest:
            least = math.ceil(largest / setting.block_size)
            raise ConfigError(
                f"{setting.text}: a cache of {setting.cache_tokens:,} tokens cannot hold the largest call of this run, of {largest:,}; "
                f"use --kv-blocks with at least {least} blocks of {setting.block_size} tokens"
            )


def _timing(choice: str, calls: FrameTable, own: Setting | None) -> WorkerSpeed | str:
    """Returns what determines the speed of simulated workers: the speed measured in the run, MOCKER, or the path of a profile.

    If the number of workers is unknown, their speed cannot be measured either, and MOCKER (the simulator's model) is used.
    """
    if choice == MEASURED:
        return (own and measured_timing(calls, own.workers)) or MOCKER
    if choice != MOCKER and not Path(choice).is_file():
        raise ConfigError(f"--timing {choice}: no such file; use {MEASURED}, {MOCKER}, or a profile that Dynamo's profiler wrote")
    return choice


def _simulator(chosen: ChosenRuns, folder: Path, timing: WorkerSpeed | str, objectives: Mapping[str, float], limit_s: float) -> Simulator:
    """Writes the trace of the run and returns a simulator for it."""
    mooncake.write(chosen, folder)
    trace = folder / f"{chosen.origins[0].run}.jsonl"
    close_loop(trace, chosen.origins[0])
    profile = None if timing == MOCKER else Path(str(timing)).absolute()
    if isinstance(timing, WorkerSpeed):
        profile = folder / "profile.npz"
        timing.write(profile)
    return Simulator(trace, profile, objectives, limit_s)


def ranked(what_if: WhatIf) -> WhatIf:
    """Returns the result with the error of the simulation in each metric, and ranks of settings that differ by more than that error."""
    off = dict(_off(what_if.measured, what_if.own.figures)) if what_if.own else {}
    places: list[dict[str, int]] = [{} for _ in what_if.answers]
    for measure in MEASURES:
        values = [value for answer in what_if.answers if (value := answer.figures.value(measure)) is not None]
        if measure.name not in off or len(values) < len(what_if.answers):
            continue
        of_measure = ranks(values, off[measure.name], rising=measure.rising, share=measure.share)
        if max(of_measure) > 1:
            for place, rank in zip(places, of_measure, strict=True):
                place[measure.name] = rank
    answers = [replace(answer, ranks=place) for answer, place in zip(what_if.answers, places, strict=True)]
    return replace(what_if, off=off, answers=answers)


def _off(run: Figures, simulation: Figures) -> Iterator[tuple[str, float]]:
    """Yields (metric, error of the simulation) for each metric that is known in the run and in the simulation of its setting."""
    for measure in MEASURES:
        one, other = simulation.value(measure), run.value(measure)
        if one is not None and other is not None:
            yield measure.name, distance(one, other, run.intervals.get(measure.name), share=measure.share)
