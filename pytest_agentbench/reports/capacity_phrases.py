"""The sentences of the reports on a stack's capacity: on sweeps over concurrency levels, and on simulations of other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_agentbench.records import EVALUABLE
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.phrases import number, percent
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.simulation.figures import change as simulated_change
from pytest_agentbench.simulation.figures import percentage, spread
from pytest_agentbench.simulation.replay import MOCKER
from pytest_agentbench.simulation.what_if import StepLine, WorkerSpeed
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS

if TYPE_CHECKING:
    from pytest_agentbench.simulation.figures import Figures, SettingMetric
    from pytest_agentbench.simulation.what_if import SettingEstimate, WhatIf
    from pytest_agentbench.sweep.levels import Criteria, SustainedRange

ANCHORS = ("ttft_p50_ms", "ttft_p99_ms", "hit_ratio", "duration_s")  # numbers that show the error of a simulation

#: Verdict on a level of a sweep -> its text.
OF_LEVELS: Mapping[str, str] = {PASS: "good enough", FAIL: "not good enough", INCONCLUSIVE: "cannot tell"}

NOT_RANKED = "not ranked: the error of this simulation is unknown"


def knee(concurrency: int, last: int) -> str:
    """Returns the knee of a sweep: the level above which more concurrency costs more than it gains. Warns if that is the `last` level."""
    beyond = "; no higher level was measured, so the knee may be higher" if concurrency == last else ""
    return f"{concurrency} in flight, with the highest ratio of tokens/s to the median duration of a call{beyond}"


def greatest(sustained: SustainedRange, terms: Criteria) -> str:
    """`2 in flight is good enough, 8 is not; cannot tell for 4 (...)`: the highest level that meets the criteria."""
    if sustained.shown is None:
        smallest = f"the lowest level shown not to be: {sustained.refuted or 'none'}"
        return f"no level is shown to be good enough ({criteria(terms)}); {smallest}; more scenarios and trials make the intervals narrower"
    refuted = f"{sustained.refuted} is not" if sustained.refuted else "no measured level is shown not to be"
    between = f"; cannot tell for {', '.join(map(str, sustained.undecided))}" if sustained.undecided else ""
    return f"{sustained.shown} in flight is good enough, {refuted}{between} ({criteria(terms)})"


def criteria(terms: Criteria) -> str:
    """`90.0 % of the calls within ttft 500.0 ms, and quality lower by no more than 0.05`: when a level is good enough."""
    slo = ", ".join(f"{name} {number(value)} ms" for name, value in terms.slo.items())
    speed = f"{percent(terms.target)} of the calls within {slo}, and " if slo else ""
    return f"{speed}quality lower by no more than {terms.margin:g}"


def search_result(low: int, high: int, sustained: SustainedRange, terms: Criteria) -> str:
    """`search from 1 to 64: 2 in flight is good enough, ...`: the result of a search for the highest good level."""
    return f"search from {low} to {high}: {greatest(sustained, terms)}"


def lost_rollouts(concurrency: int, statuses: Mapping[str, int]) -> str:
    """`concurrency 8: 2 infra_error`: the rollouts of a level that ended neither as `ok` nor as `limit`. Empty if there are none."""
    parts = [f"{amount} {status}" for status, amount in statuses.items() if status not in EVALUABLE]
    return f"concurrency {concurrency}: {', '.join(parts)}" if parts else ""


def warm_up(rollouts: int) -> str:
    """Returns how many rollouts were left out as warm-up. Empty if none was."""
    return f"{rollouts} rollouts, the first block of each level" if rollouts else ""


def unwarmed(levels: Sequence[int]) -> str:
    """Names the concurrency levels without a warm-up, whose numbers include their first calls. Empty if each level had one."""
    names = ", ".join(map(str, levels))
    return f"concurrency {names} had only one block and no warm-up, so the numbers include its first calls" if levels else ""


def short_blocks(concurrency: int, rollouts: int) -> str:
    """Warns that often fewer than `concurrency` rollouts were in flight, because this level ran in blocks of only `rollouts` rollouts."""
    return (
        f"concurrency {concurrency} ran in blocks of {rollouts} rollouts, so for much of their time fewer were in flight; "
        "a suite with more scenarios has longer blocks"
    )


def good_share(mean: float | None, low: float | None, high: float | None) -> str:
    """`90.0 % (37.0 % to 100.0 %)`: the share of good calls with its interval."""
    return f"{percent(mean)} ({percent(low)} to {percent(high)})"


def level_verdict(verdict: str) -> str:
    """Returns the verdict on a level in words, for example `good enough`."""
    return OF_LEVELS[verdict]


def sweep_files(run: Run) -> Text:
    """Names the files beside the report of a sweep, and says what they contain."""
    return (
        *(f"Run {run.id}. ", Code("levels.csv"), " has more columns; ", Code("benchmark_results.csv"), ", ", Code("benchmark_report.md")),
        *(" and ", Code("analysis_*.txt"), " are the files that ", Code("run_concurrency_benchmark.sh"), " of the NeMo Agent Toolkit's "),
        "example writes. Their wall clock is the time in which rollouts of the level ran.",
    )


def anchor(what_if: WhatIf) -> Text:
    """Compares simulated metrics with the measured ones of the run, in the setting (such as the number of workers) that the run had.

    Says why the error of the simulation is unknown if the run does not record that setting.
    """
    if what_if.own is None:
        options = ",".join(f"{name}={'kv' if name == 'router' else 'N'}" for name in what_if.lacking)
        lacking = " and ".join(what_if.lacking)
        command = Code(f"--original {options}", "command")
        return f"the error of the simulation is unknown, because the run does not record its {lacking}; set it with ", command
    parts = [_anchored(each, what_if.own.figures, what_if.measured) for each in what_if.measures if each.name in ANCHORS]
    return f"{what_if.run} with its own setting ({what_if.own.setting.text}), simulated / measured: {', '.join(filter(None, parts))}"


def _anchored(measure: SettingMetric, simulation: Figures, run: Figures) -> str:
    """`TTFT p50 57.0 / 43.0 ms (+32 %)`: a metric, simulated and measured. Empty if either is unknown."""
    one, other = simulation.value(measure), run.value(measure)
    if one is None or other is None:
        return ""
    values = " / ".join(number(value, measure.digits) for value in (one, other))
    return f"{measure.title} {values} {measure.unit}".rstrip() + f" ({simulated_change(one, other, share=measure.share)})"


def replayed(what_if: WhatIf) -> str:
    """Returns how many calls the simulator replayed, and the size of its KV blocks."""
    left_out = f"; {what_if.left_out} failed calls are left out" if what_if.left_out else ""
    blocks = ", ".join(map(str, sorted({answer.setting.block_size for answer in what_if.answers})))
    return f"{what_if.calls} calls replayed by Dynamo's simulator{left_out}; blocks of {blocks} tokens, for each worker"


def worker_speed(timing: WorkerSpeed | str) -> str:
    """Returns how fast a simulated worker is, and whether that was measured, modelled or given."""
    if isinstance(timing, WorkerSpeed):
        reading, answering = _step(timing.prefill, "that are not cached"), _step(timing.decode, "in progress")
        return f"of a worker, as measured: a prompt takes {reading}, an output token {answering}"
    if timing == MOCKER:
        model = "of a worker, by the simulator's own model"
        return f"{model}, in which a larger cache makes answers faster, so it cannot tell how much KV blocks help"
    return f"of a worker, as {timing} says"


def _step(line: StepLine, which: str) -> str:
    slope = f" + {line.per_token_ms * 1e3:.3g} ms for 1,000 tokens {which}" if line.per_token_ms else ""
    return f"{line.base_ms:.1f} ms{slope}"


def setting(answer: SettingEstimate) -> str:
    """`2 workers, 800 blocks, kv`: a simulated setting. The run's own one is marked `(own)`."""
    return f"{answer.setting.text}{' (own)' if answer.own else ''}"


def ranked(value: float | None, digits: int, rank: int | None) -> str:
    """`48.3 (1)`: a simulated metric of a setting, and the rank of the setting in this metric if the settings are ranked."""
    return number(value, digits) + (f" ({rank})" if rank else "")


def ranking(what_if: WhatIf, measure: SettingMetric) -> str:
    """Returns how much two settings must differ in a metric to be ranked, or why they are not ranked."""
    if measure.name not in what_if.off:
        return "not ranked: not measured"
    off = percentage(what_if.off[measure.name], share=measure.share)
    if all(measure.name in answer.ranks for answer in what_if.answers):
        return f"ranked if settings differ by more than {off}, the possible error of the simulation"
    values = [value for answer in what_if.answers if (value := answer.figures.value(measure)) is not None]
    widest = percentage(spread(values, share=measure.share), share=measure.share)
    return f"not ranked: the simulation may be off by {off}, and these settings differ by {widest} at most"
