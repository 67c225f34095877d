"""The table and the sections of docs/reference/scorers.md, from the scorers' docstrings, options and declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from pytest_agentbench.lib.user_code import options_of
from pytest_agentbench.scorers import SCORERS, load_scorer
from pytest_agentbench.scorers.declaration import scale_of
from tests.pages.api import paragraphs
from tests.pages.markdown import prose, table_row
from tests.pages.yaml_keys import default_text

#: Group of the page -> scorers in it.
GROUPS: Mapping[str, str] = {
    "tools": "tsq tsq_multiset tsq_ordered tsq_arguments tsq_subset tsq_superset exact_match parameter_accuracy schema_valid hallucinated "
    "repeated state_equals nat_compat",
    "answers": "exact regex numeric judged_answer",
    "tasks": "reward action_completion completeness reasoning_quality nat_action_completion",
}


def scorer_parts() -> Mapping[str, list[str]]:
    """Maps the table of all scorers and each group to its lines. Fails if a scorer is in no group."""
    groups = {group: names.split() for group, names in GROUPS.items()}
    assert {*SCORERS} == {name for names in groups.values() for name in names}
    sections = {group: [line for name in names for line in _section(name)] for group, names in groups.items()}
    return {"scorers": [*_table(name for names in groups.values() for name in names)], **sections}


def _table(names: Iterator[str]) -> Iterator[str]:
    yield from ("| scorer | better | range | options | value |", "|---|---|---|---|---|")
    for name in names:
        function = load_scorer(name)
        scale, options = scale_of(function), ", ".join(f"`{option}`" for option in options_of(function))
        ends = [f"{end:g}" if end is not None else "" for end in (scale.least, scale.greatest)]
        span = f"{ends[0]} to {ends[1]}" if all(ends) else f"from {ends[0]}" if ends[0] else ""
        about = (inspect.getdoc(function) or "").partition("\n\n")[0].removeprefix("Returns ")
        yield table_row(f"[`{name}`](#{name})", scale.better, span, options, prose(about))


def _section(name: str) -> Iterator[str]:
    function = load_scorer(name)
    doc, _, arguments = (inspect.getdoc(function) or "").partition("\n\nOptions:\n")
    yield from (f"### {name}", "", *paragraphs(doc))
    if options := options_of(function):
        docs = dict(line.strip().split(": ", 1) for line in arguments.splitlines())
        yield from ("| option | default | is |", "|---|---|---|")
        yield from (table_row(f"`{option}`", default_text(default), docs[option]) for option, default in options.items())
        yield ""
