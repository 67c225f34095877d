"""The tables of docs/reference/environment.md, from .env.example and from the variables that agentbench sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.lib.options import GIVEN
from tests.pages.markdown import table_row

EXAMPLE = Path(__file__).parents[2] / ".env.example"
LINE = re.compile(r"# export (?P<name>[A-Z][A-Z0-9_]+)=(?P<default>\S*) +# (?P<about>.+)|# (?P<title>[A-Z]\w+(?: \w+)*)")


def read_variables() -> Iterator[str]:
    """Yields a table of the variables in .env.example. Names of one group stand together. Its first lines of prose are left out."""
    yield from ("| group | variable | default or example | is |", "|---|---|---|---|")
    group = ""
    for line in EXAMPLE.read_text(encoding="utf-8").split("\n\n", 1)[1].splitlines():
        if line:
            match = LINE.fullmatch(line)
            assert match, f".env.example: {line!r} is neither `# export NAME=default  # text` nor the title of a group"
            group = match["title"] or group
            if match["name"]:
                yield table_row(group, f"`{match['name']}`", f"`{match['default']}`" if match["default"] else "", match["about"])


def set_variables() -> Iterator[str]:
    """Yields a table of the variables that agentbench sets for processes."""
    yield from ("| variable | value |", "|---|---|", *(table_row(f"`{name}`", about) for name, about in GIVEN.items()))
