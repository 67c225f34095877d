"""Pictures of runs. A picture is a file of a name that takes what was measured and draws it; matplotlib is imported here alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError

if TYPE_CHECKING:
    from pytest_agentbench.exports.files import ChosenRuns

FORMATS = ("png", "svg")
FOLDER = "plots"  # in a run's directory

#: What a picture shows, in the order in which reports link them; `{score}` is the score's name.
TITLES: Mapping[str, str] = {
    "summary_throughput_vs_{score}": "quality against six measures",
    "ttft_vs_{score}": "quality against time to first token",
    "itl_vs_{score}": "quality against inter-token latency",
    "tps_vs_{score}": "quality against tokens per second",
    "total_tokens_vs_{score}": "quality against output tokens",
    "llm_calls_vs_{score}": "quality against LLM calls",
    "summary_throughput_histograms": "how six measures spread",
    "ttft_histogram": "how the time to first token spreads",
    "itl_histogram": "how inter-token latency spreads",
    "tps_histogram": "how tokens per second spread",
    "total_tokens_histogram": "how output tokens spread",
    "llm_calls_histogram": "how LLM calls spread",
    "total_duration_histogram": "how durations spread",
    "quality_vs_speed": "runs: quality against speed",
    "throughput_vs_latency": "runs: throughput against latency",
}


def draw(chosen: ChosenRuns, directory: Path, *, score: str | None, color_by: str | None, format: str) -> None:
    """Draws every picture of some runs into a directory that is there, and writes their data beside them.

    `score` is the main score of the runs where it is None. `color_by` is then the run: of one that has arms the variant, and of more runs
    than colours tell apart the suite; it may name a setting. Raises ConfigError for a score or a column that the runs do not have, for
    runs of which nothing was measured, and where matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("pictures need matplotlib; install it with `pip install 'pytest-agentbench[plots]'`")
    from pytest_agentbench.plots import histograms, runs, scatter
    from pytest_agentbench.plots.canvas import save, style
    from pytest_agentbench.plots.points import MOST_COLOURS, points_of, settings_of, ttfts_of_arms, write_data

    measured = [*map(chosen.run_of, chosen.origins)]
    own = "variant" if len(measured) == 1 and measured[0].ab else "run" if len(measured) <= MOST_COLOURS else "suite"
    settings = settings_of({origin.run: run for origin, run in zip(chosen.origins, measured, strict=True)})
    points = points_of(chosen.tables, score or main_score(chosen), color_by or own, settings)
    write_data(points, directory)
    ttfts = [ttfts_of_arms(chosen.tables, origin.run) if run.ab else {} for origin, run in zip(chosen.origins, measured, strict=True)]
    with style():
        pictures = {**scatter.pictures(points), **histograms.pictures(points), **runs.pictures(measured, ttfts)}
        for name, figure in pictures.items():
            save(figure, directory / f"{name}.{format}")


def main_score(chosen: ChosenRuns) -> str:
    """The first score of the first suite."""
    return next((suite.main_score for origin in chosen.origins for suite in chosen.run_of(origin).suites.values()), "tsq")


def left_out(chosen: ChosenRuns, score: str | None) -> str:
    """A sentence on what has no points, because no rollout of it has the score; empty where there is nothing."""
    from pytest_agentbench.plots.points import unscored

    score = score or main_score(chosen)
    names = unscored(chosen.tables, score)
    return f"no rollout has {score}, so there is no point: {', '.join(names)}" if names else ""


def drawn(directory: Path) -> Iterator[tuple[str, Path]]:
    """(title, file) of the pictures that a run directory has, the most telling first."""
    files = {file.stem: file for file in sorted((directory / FOLDER).glob("*")) if file.suffix[1:] in FORMATS}
    for name, title in TITLES.items():
        beginning = name.removesuffix("{score}")
        for stem, file in files.items():
            if stem == name or (beginning != name and stem.startswith(beginning)):
                yield title, file
