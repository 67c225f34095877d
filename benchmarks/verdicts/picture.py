"""`python -m benchmarks.verdicts.picture`: draws docs/compare/two-questions.svg, about gate rules `of suite` and `of population`."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/compare/two-questions.svg"
SCENARIOS, TRIALS, OTHERS = 7, 3, 60
WIDTH, HEIGHT = 760, 330
TITLES = ("of suite: would these do worse again?", "of population: would others like these?")
FOOTS = ("what varies: the trials of these seven", "what varies: the trials, and which scenarios were drawn")


def picture() -> str:
    parts = [panel(at, title, foot) for at, (title, foot) in enumerate(zip(TITLES, FOOTS, strict=True))]
    style = "text{font:14px sans-serif;fill:#333}.head{font-weight:bold}.note{fill:#666}"
    box = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    label = "Seven scenarios with three trials each; beside it the same seven among sixty that were not drawn."
    return "\n".join(
        [f'{box} aria-label="{label}">', f"<style>{style}</style>", '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""]
    )


def panel(at: int, title: str, foot: str) -> str:
    left = at * WIDTH / 2
    marks = [*others(left)] if at else []
    texts = [
        f'<text class="head" x="{left + 20}" y="28">{title}</text>',
        f'<text class="note" x="{left + 20}" y="{HEIGHT - 16}">{foot}</text>',
    ]
    frame = f'<rect x="{left + 12}" y="42" width="{WIDTH / 2 - 24}" height="{HEIGHT - 84}" rx="8" fill="none" stroke="#ccc"/>'
    return "\n".join([frame, *marks, *scenarios(left), *texts])


def scenarios(left: float) -> Iterator[str]:
    """Yields SVG elements of the scenarios: each is a circle with its trials as dots in it."""
    for number in range(SCENARIOS):
        x, y = left + 62 + number % 4 * 82 + number // 4 * 40, 110 + number // 4 * 110
        yield f'<circle cx="{x}" cy="{y}" r="26" fill="#e8f0fe" stroke="#1a56c4" stroke-width="2"/>'
        for trial in range(TRIALS):
            angle = 2 * math.pi * (trial / TRIALS + number / 11)
            yield f'<circle cx="{x + 12 * math.cos(angle):.1f}" cy="{y + 12 * math.sin(angle):.1f}" r="4.5" fill="#1a56c4"/>'


def others(left: float) -> Iterator[str]:
    """Yields SVG elements of scenarios that were not chosen for the suite but might have been."""
    places = random.Random(7)
    for _ in range(OTHERS):
        x, y = left + places.uniform(30, WIDTH / 2 - 30), places.uniform(60, HEIGHT - 60)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="13" fill="none" stroke="#bbb" stroke-dasharray="3 3"/>'


if __name__ == "__main__":
    PAGE.write_text(picture(), encoding="utf-8")
