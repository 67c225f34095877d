"""What a run would have met on other settings: for a terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from pytest_agentbench.reports.markdown import prose, table
from pytest_agentbench.reports.numbers import number
from pytest_agentbench.simulation.figures import Figures, Measure
from pytest_agentbench.simulation.question import MOCKER
from pytest_agentbench.simulation.ranks import change, percentage, spread
from pytest_agentbench.simulation.what_if import SettingEstimate, WhatIf
from pytest_agentbench.simulation.worker_speed import StepLine, WorkerSpeed

ANCHORS = ("ttft_p50_ms", "ttft_p99_ms", "hit_ratio", "duration_s")  # in the first line


def text(what_if: WhatIf) -> Iterator[str]:
    """Lines for a terminal."""
    yield anchor_line(what_if)
    yield from notes(what_if)
    yield ""
    header, rows = cells(what_if)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = (
            cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
    yield ""
    yield from ranking_lines(what_if)


def markdown(what_if: WhatIf) -> Iterator[str]:
    """The same for a page."""
    yield f"# What if: {prose(what_if.run)}"
    yield ""
    for line in (anchor_line(what_if), *notes(what_if)):
        yield f"- {prose(line)}"
    yield ""
    yield from table(*cells(what_if))
    yield ""
    yield from (f"- {prose(line)}" for line in ranking_lines(what_if))


def as_json(what_if: WhatIf) -> Iterator[str]:
    """The same for programs; how far the simulation is off as a share of the number (0.17: 17 %), or as a difference of shares."""
    shares = {each.name for each in what_if.measures if each.share}
    off = {name: size if name in shares else math.expm1(size) for name, size in what_if.off.items()}
    finite = {name: size if math.isfinite(size) else None for name, size in off.items()}
    yield json.dumps({**asdict(what_if), "off": finite}, indent=2, ensure_ascii=False)


#: Format -> what writes it.
WRITERS: Mapping[str, Callable[[WhatIf], Iterator[str]]] = {"text": text, "markdown": markdown, "json": as_json}


def anchor_line(what_if: WhatIf) -> str:
    """How far the simulation of the run's own setting is from what was measured."""
    if what_if.own is None:
        options = ",".join(f"{name}={'kv' if name == 'router' else 'N'}" for name in what_if.lacking)
        return f"nothing anchors this table: the run does not say its {' and '.join(what_if.lacking)}, which --own {options} would"
    parts = [_anchored(each, what_if.own.figures, what_if.measured) for each in what_if.measures if each.name in ANCHORS]
    return f"{what_if.run} as it was ({what_if.own.setting.text}), simulated / measured: {', '.join(filter(None, parts))}"


def _anchored(measure: Measure, simulation: Figures, run: Figures) -> str:
    """`TTFT p50 57.0 / 43.0 ms (+32 %)`"""
    one, other = simulation.value(measure), run.value(measure)
    if one is None or other is None:
        return ""
    values = " / ".join(number(value, measure.digits) for value in (one, other))
    return f"{measure.title} {values} {measure.unit}".rstrip() + f" ({change(one, other, share=measure.share)})"


def notes(what_if: WhatIf) -> Iterator[str]:
    """What was replayed, and how fast a simulated worker is."""
    left_out = f"; {what_if.left_out} that failed are left out" if what_if.left_out else ""
    sizes = sorted({answer.setting.block_size for answer in what_if.answers})
    blocks = ", ".join(map(str, sizes))
    yield f"{what_if.calls} calls replayed by Dynamo's simulator{left_out}; blocks of {blocks} tokens, for each worker"
    yield f"a worker's speed: {_speed(what_if.timing)}"


def _speed(timing: WorkerSpeed | str) -> str:
    if isinstance(timing, WorkerSpeed):
        reading, answering = _line(timing.prefill, "that no cache has"), _line(timing.decode, "in work")
        return f"as measured: a prompt takes {reading}, a token of an answer {answering}"
    if timing == MOCKER:
        return "the simulator's own model, in which answers are faster where the cache is larger: what blocks are worth it cannot tell"
    return f"as {timing} says"


def _line(line: StepLine, which: str) -> str:
    slope = f" + {line.per_token_ms * 1e3:.3g} ms for 1,000 tokens {which}" if line.per_token_ms else ""
    return f"{line.base_ms:.1f} ms{slope}"


def cells(what_if: WhatIf) -> tuple[list[str], list[list[str]]]:
    """The header and the rows: what was measured, and each setting."""
    header = ["setting", *(f"{each.title} {each.unit}".rstrip() for each in what_if.measures)]
    run = ["measured", *(number(what_if.measured.value(each), each.digits) for each in what_if.measures)]
    return header, [run, *(_row(answer, what_if.measures) for answer in what_if.answers)]


def _row(answer: SettingEstimate, measures: Sequence[Measure]) -> list[str]:
    """`2 workers, 800 blocks, kv`, and numbers with their places: `48.3 (1)`."""
    name = f"{answer.setting.text}{' (own)' if answer.own else ''}"
    places = (f" ({rank})" if (rank := answer.ranks.get(each.name)) else "" for each in measures)
    return [name, *(f"{number(answer.figures.value(each), each.digits)}{place}" for each, place in zip(measures, places, strict=True))]


def ranking_lines(what_if: WhatIf) -> Iterator[str]:
    """For each number from when on settings have places (n), or why they have none."""
    if len(what_if.answers) < 2:
        return
    if what_if.own is None:
        yield "not ranked: nobody knows how far this simulation is from the machine"
        return
    for measure in what_if.measures:
        yield f"{measure.title}: {_ranking(what_if, measure)}"


def _ranking(what_if: WhatIf, measure: Measure) -> str:
    if measure.name not in what_if.off:
        return "not ranked, for it was not measured"
    off = percentage(what_if.off[measure.name], share=measure.share)
    if all(measure.name in answer.ranks for answer in what_if.answers):
        return f"ranked where settings differ by more than {off}, which the simulation may be off"
    values = [value for answer in what_if.answers if (value := answer.figures.value(measure)) is not None]
    widest = percentage(spread(values, share=measure.share), share=measure.share)
    return f"not ranked: the simulation may be {off} off, and these settings differ by {widest} at most"
