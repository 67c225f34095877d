"""Pictures of runs, drawn by `agentbench plot`, `sweep` and `reproduce`. Only this package imports matplotlib."""

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

#: File name of a picture -> its title, in the order of the links in reports. `{score}` is the name of the score.
TITLES: Mapping[str, str] = {
    "summary_throughput_vs_{score}": "quality against six measures",
    "ttft_vs_{score}": "quality against time to first token",
    "itl_vs_{score}": "quality against inter-token latency",
    "tps_vs_{score}": "quality against tokens per second",
    "total_tokens_vs_{score}": "quality against output tokens",
    "llm_calls_vs_{score}": "quality against LLM calls",
    "summary_throughput_histograms": "distributions of six measures",
    "ttft_histogram": "distribution of the time to first token",
    "itl_histogram": "distribution of inter-token latency",
    "tps_histogram": "distribution of tokens per second",
    "total_tokens_histogram": "distribution of output tokens",
    "llm_calls_histogram": "distribution of LLM calls",
    "total_duration_histogram": "distribution of durations",
    "quality_vs_speed": "runs: quality against speed",
    "throughput_vs_latency": "runs: throughput against latency",
}


def draw(chosen: ChosenRuns, directory: Path, *, score: str | None, color_by: str | None, format: str) -> None:
    """Draws all pictures of some runs into an existing directory, and writes their data next to them.

    Args:
        chosen: The runs.
        directory: The directory.
        score: Name of the score. The default is the main score of the first suite.
        color_by: The column or setting whose values have a colour each. The default is the run. It is the variant for a single run with
            arms, and the suite if there are more runs than colours.
        format: `png` or `svg`.

    Raises:
        ConfigError: The runs have no such score or column, nothing was measured, or matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("pictures need matplotlib; install it with `pip install 'pytest-agentbench[plots]'`")
    from pytest_agentbench.plots import comparisons, rollout_pictures
    from pytest_agentbench.plots.canvas import save, style
    from pytest_agentbench.plots.points import MOST_COLOURS, points_of, settings_of, ttfts_of_arms, write_data

    measured = [*map(chosen.run_of, chosen.origins)]
    own = "variant" if len(measured) == 1 and measured[0].ab else "run" if len(measured) <= MOST_COLOURS else "suite"
    settings = settings_of({origin.run: run for origin, run in zip(chosen.origins, measured, strict=True)})
    points = points_of(chosen.tables, score or main_score(chosen), color_by or own, settings)
    write_data(points, directory)
    ttfts = [ttfts_of_arms(chosen.tables, origin.run) if run.ab else {} for origin, run in zip(chosen.origins, measured, strict=True)]
    with style():
        pictures = {
            **rollout_pictures.scatter_pictures(points),
            **rollout_pictures.histogram_pictures(points),
            **comparisons.pictures(measured, ttfts),
        }
        for name, figure in pictures.items():
            save(figure, directory / f"{name}.{format}")


def main_score(chosen: ChosenRuns) -> str:
    """Returns the main score of the first suite in the runs, or `tsq` if they have no suite."""
    return next((suite.main_score for origin in chosen.origins for suite in chosen.run_of(origin).suites.values()), "tsq")


def left_out(chosen: ChosenRuns, score: str | None) -> str:
    """Returns a sentence about suites without points, because none of their rollouts has the score. Empty if there are none."""
    from pytest_agentbench.plots.points import unscored

    score = score or main_score(chosen)
    names = unscored(chosen.tables, score)
    return f"no points, because no rollout has {score}: {', '.join(names)}" if names else ""


def drawn(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yields (title, file) of the pictures that exist in a run directory, in the order of TITLES."""
    files = {file.stem: file for file in sorted((directory / FOLDER).glob("*")) if file.suffix[1:] in FORMATS}
    for name, title in TITLES.items():
        beginning = name.removesuffix("{score}")
        for stem, file in files.items():
            if stem == name or (beginning != name and stem.startswith(beginning)):
                yield title, file
