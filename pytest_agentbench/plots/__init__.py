"""Pictures of runs. A picture is a file of a name that takes what was measured and draws it; matplotlib is imported here alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError

if TYPE_CHECKING:
    from pytest_agentbench.exports.chosen import Chosen

FORMATS = ("png", "svg")
FOLDER = "plots"  # in a run's directory

#: What a picture shows, in the order in which reports link them; `{score}` is the score's name.
TITLES: Mapping[str, str] = {
    "summary_throughput_vs_{score}": "quality against six measures",
    "ttft_vs_{score}": "quality against time to first token",
    "itl_vs_{score}": "quality against inter-token latency",
    "tps_vs_{score}": "quality against tokens per second",
    "total_tokens_vs_{score}": "quality against tokens",
    "llm_calls_vs_{score}": "quality against LLM calls",
    "summary_throughput_histograms": "how six measures spread",
    "ttft_histogram": "how the time to first token spreads",
    "itl_histogram": "how inter-token latency spreads",
    "tps_histogram": "how tokens per second spread",
    "total_tokens_histogram": "how tokens spread",
    "llm_calls_histogram": "how LLM calls spread",
    "total_duration_histogram": "how durations spread",
    "quality_vs_speed": "runs: quality against speed",
    "throughput_vs_latency": "runs: throughput against latency",
}


def draw(chosen: Chosen, directory: Path, *, score: str | None, color_by: str, format: str) -> None:
    """Draws every picture of some runs into a directory that is there.

    `score` is the main score of the runs where it is None. Raises ConfigError for a score or a column that the runs do not have, for
    runs of which nothing was measured, and where matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("pictures need matplotlib; install it with `pip install 'pytest-agentbench[plots]'`")
    from pytest_agentbench.plots import histograms, runs, scatter
    from pytest_agentbench.plots.canvas import save, style
    from pytest_agentbench.plots.points import points_of

    measured = [*map(chosen.run_of, chosen.origins)]
    main = next((suite.main_score for run in measured for suite in run.suites.values()), "tsq")
    points = points_of(chosen.tables, score or main, color_by)
    with style():
        pictures = {**scatter.pictures(points), **histograms.pictures(points), **runs.pictures(measured)}
        for name, figure in pictures.items():
            save(figure, directory / f"{name}.{format}")


def drawn(directory: Path) -> Iterator[tuple[str, Path]]:
    """(title, file) of the pictures that a run directory has, the most telling first."""
    files = {file.stem: file for file in sorted((directory / FOLDER).glob("*")) if file.suffix[1:] in FORMATS}
    for name, title in TITLES.items():
        beginning = name.removesuffix("{score}")
        for stem, file in files.items():
            if stem == name or (beginning != name and stem.startswith(beginning)):
                yield title, file
