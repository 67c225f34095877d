"""The tables of docs/reference/options.md, from the declarations of the pytest options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_agentbench.runs.option import Option
from pytest_agentbench.session.settings import OPTIONS
from tests.pages.cli import DEFAULT
from tests.pages.markdown import table_row

#: Title of a table -> option, or beginning of the names of several options -> page that shows how it is used.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "selection": {
        "limit": "running.md",
        "scenarios": "running.md",
        "trials": "gates.md",
        "variants": "suites.md",
        "agent": "included-agents.md",
        "set": "running.md",
    },
    "backend": {"backend": "choose.md", "cache": "ab.md", "keep-backend": "stacks.md", "gpu-wait": "stacks.md", "ab": "ab.md"},
    "judgement": {
        "threshold": "gates.md",
        "gate": "gates.md",
        "baseline": "baselines.md",
        "inconclusive": "gates.md",
        "verdict": "gates.md",
        "slo": "metrics.md#goodput",
    },
    "capacity": {
        "concurrency": "running.md",
        "workers": "running.md",
        "sandboxes": "sandboxes.md",
        "taps": "stopwatch.md#timing-quality",
        "nodes": "nodes.md",
    },
    "limits": {"time-limit": "running.md", "budget": "running.md", "size": "running.md", "retries": "running.md"},
    "results": {
        "reports": "running.md",
        "name": "running.md",
        "resume": "resume.md",
        "keep": "conversations.md",
        "log-level": "running.md",
        "window": "metrics.md#a-window-of-your-own",
        "sample-interval": "metrics.md#what-the-server-says",
        "metrics-port": "monitoring.md",
        "ci": "pipelines.md",
        "inline": "running.md",
    },
}


def option_tables() -> Mapping[str, list[str]]:
    """Maps a title to the table of its options. Fails if an option is in no table."""
    tables = {title: [*_table(names)] for title, names in GROUPS.items()}
    assert {each.name for each in OPTIONS} == {each.name for names in GROUPS.values() for name in names for each in _named(name)}
    return tables


def _named(name: str) -> list[Option]:
    """Returns the option with a name, and those whose names continue it, unless another entry names them."""
    others = {other for names in GROUPS.values() for other in names} - {name}
    return [each for each in OPTIONS if each.name not in others and f"{each.name}-".startswith(f"{name}-")]


def _table(names: Mapping[str, str]) -> Iterator[str]:
    yield from ("| option | ini key | default | is | guide |", "|---|---|---|---|---|")
    for name, page in names.items():
        yield from (_row(each, page) for each in _named(name))


def _row(option: Option, page: str) -> str:
    value = option.metavar or ""
    flag = f"{option.flag}[={value.strip('[]')}]" if value.startswith("[") else f"{option.flag} {value}".strip()
    about, default = option.help, f"`{option.default}`" if option.default else ""
    if found := DEFAULT.search(about):
        about, default = about.replace(found[0], ""), found[2]
    about += "; can be given several times" * (option.many is not None)
    return table_row(f"`{flag}`", f"`{option.key}`", default, about, f"[{page.partition('.')[0]}]({page})")
