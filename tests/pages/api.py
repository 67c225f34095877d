"""The sections of docs/reference/api.md and of docs/reference/hooks.md, from signatures, docstrings and comments of fields."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest_agentbench
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.schemas.result_files import docs_of, records_of
from pytest_agentbench.session import hookspecs
from pytest_agentbench.session.fixtures import FIXTURES
from tests.pages.markdown import prose, table_row

#: Title of a part of the page -> public names in it.
PARTS: Mapping[str, str] = {
    "agents": "LLM Toolbox BlockingToolbox Answer ToolError AgentError LimitReached InfraError",
    "scorers": "scorer Score tsq ask Form",
    "suites": "Scenario Tool Selection SuiteInfo SuiteDraft",
    "runs": "load read_journal read_samples Run Rollout LLMCall Chunk ToolCall timings load_peer Conversations NotKept Source",
    "backends": "Backend Endpoint BackendError Sources Target Tell",
    "launchers": "Launcher LaunchState WorkerTerms",
    "sections": "RunView Section Fact Measure Table Column Note Code Level",
}

#: Class -> its methods that users call. Of all other classes, all public methods with a docstring are on the page.
METHODS: Mapping[str, tuple[str, ...]] = {
    "Toolbox": ("call", "schemas", "record", "parse_call"),
    "Section": (),
    "Run": (),
}

NAMED, QUOTED = re.compile(r"^(\w+): "), r"`\1`: "  # the name of an argument or of an error

#: Names without a docstring.
ABOUT = {"Tell": "The function that `Backend.watch` calls with the names of unavailable parts, and with none when all of them serve again."}

#: Records whose keys are on the page about result files.
IN_RUN_JSON = {*records_of(Run), *records_of(Rollout)}


def api_parts() -> Mapping[str, list[str]]:
    """Maps a part of the page to its lines. Fails if a public name is in no part."""
    assert {name for names in PARTS.values() for name in names.split()} == {*pytest_agentbench.__all__}
    return {part: [line for name in names.split() for line in _section(name)] for part, names in PARTS.items()}


def fixture_table() -> Iterator[str]:
    """Yields the table of the fixtures of suites."""
    yield from ("| fixture | is |", "|---|---|")
    shown = [each for each in FIXTURES if not each.__name__.startswith("_")]
    yield from (table_row(f"`{each.__name__}`", inspect.getdoc(each) or "") for each in shown)


def hook_sections() -> Iterator[str]:
    """Yields a section for each hook of docs/reference/hooks.md: its signature and its docstring."""
    for name, hook in vars(hookspecs).items():
        if name.startswith("pytest_agentbench_"):
            yield from (f"### {name}", "", "```text", f"{name}{signature(hook)}", "```", "", *paragraphs(inspect.getdoc(hook) or ""))


def _section(name: str) -> Iterator[str]:
    named = getattr(pytest_agentbench, name)
    yield from (f"### {name}", "")
    if inspect.isfunction(named):
        yield from ("```text", f"{name}{signature(named)}", "```", "")
    elif isinstance(named, type) and not _fields(named) and "__init__" in vars(named) and not issubclass(named, BaseException):
        yield from ("```text", f"{name}{signature(named.__init__, bound=True)}", "```", "")
    yield from paragraphs(ABOUT.get(name) or inspect.getdoc(named) or "")
    if isinstance(named, types.ModuleType):
        yield from _functions(named)
    elif isinstance(named, type):
        yield from _attributes(named)
        yield from _methods(named)


def paragraphs(doc: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring. Arguments and errors become lists."""
    for paragraph in doc.split("\n\n"):
        if match := re.match(r"(Args|Raises|Returns):\n", paragraph):
            items = re.split(r"\n {4}(?=\S)", paragraph[match.end() - 1 :])[1:]
            yield from ({"Args": "Arguments:", "Raises": "Raises:", "Returns": "Returns:"}[match[1]], "")
            yield from (f"- {NAMED.sub(QUOTED, prose(item))}" for item in items)
        elif "\n- " in paragraph or paragraph.startswith("- "):
            yield from (prose(line) if not line.startswith("  ") else f"  {prose(line)}" for line in paragraph.splitlines())
        else:
            yield prose(paragraph)
        yield ""


def _fields(of: type) -> Iterable[str]:
    if dataclasses.is_dataclass(of):
        return [field.name for field in dataclasses.fields(of) if not field.name.startswith("_")]
    return getattr(of, "_fields", ()) or [name for name in vars(of).get("__annotations__", {}) if not name.startswith("_")]


def _attributes(of: type) -> Iterator[str]:
    """Yields the table of a class's attributes, a link to it, or the values of an enumeration."""
    if issubclass(of, enum.Enum):
        yield from (f"Values: {', '.join(f'`{each.name}`' for each in of)}.", "")
    elif of in IN_RUN_JSON:
        yield from (f"Attributes: the keys of [{of.__name__}](run-json.md#{of.__name__.lower()}).", "")
    elif names := _fields(of):
        docs, hints = docs_of(of), _annotations(of)
        yield from ("| attribute | type | is |", "|---|---|---|")
        yield from (table_row(f"`{name}`", f"`{hints[name]}`", re.sub(r"\bnull\b", "None", docs[name])) for name in names)
        yield ""


def _annotations(of: type) -> dict[str, str]:
    """Returns the types of a class's attributes as they are written in the code."""
    return {name: _text(kind) for each in reversed(of.__mro__) for name, kind in vars(each).get("__annotations__", {}).items()}


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or inspect.formatannotation(annotation)


def _methods(of: type) -> Iterator[str]:
    """Yields the table of a class's methods and properties, with the first paragraph of their docstrings."""
    chosen = METHODS.get(of.__name__)
    own = of.__mro__[1] if of.__name__ == "Conversations" else of
    members = {name: each for name, each in vars(own).items() if not name.startswith("_") and _is_member(each) and inspect.getdoc(each)}
    shown = {name: each for name, each in members.items() if chosen is None or name in chosen}
    if shown:
        yield from ("| member | is |", "|---|---|")
        yield from (table_row(f"`{_call(name, each)}`", (inspect.getdoc(each) or "").partition("\n\n")[0]) for name, each in shown.items())
        yield ""


def _is_member(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod) or hasattr(value, "attrname")


def _call(name: str, member: Any) -> str:
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    return f"{name}{signature(function, bound=not isinstance(member, staticmethod))}" if inspect.isfunction(function) else name


def _functions(module: types.ModuleType) -> Iterator[str]:
    own = {name: each for name, each in vars(module).items() if inspect.isfunction(each) and each.__module__ == module.__name__}
    yield from ("| function | is |", "|---|---|")
    for name, function in own.items():
        if not name.startswith("_"):
            yield table_row(f"`{name}{signature(function)}`", (inspect.getdoc(function) or "").partition("\n\n")[0])
    yield ""


def signature(function: Callable[..., Any], *, bound: bool = False) -> str:
    """Returns the parameters and the type of the result, as they are written in the code. With `bound`, without the first parameter."""
    of = inspect.signature(function)
    shown: list[str] = []
    for place, each in enumerate(of.parameters.values()):
        if not (bound and place == 0):
            if each.kind is inspect.Parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in shown):
                shown.append("*")
            shown.append(_parameter(each))
    result = "" if of.return_annotation in (inspect.Signature.empty, "None") else f" -> {_text(of.return_annotation)}"
    return f"({', '.join(shown)}){result}"


def _parameter(each: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
    kind = "" if each.annotation is inspect.Parameter.empty else f": {_text(each.annotation)}"
    default = "" if each.default is inspect.Parameter.empty else f" = {_default(each.default)}"
    return f"{stars}{each.name}{kind}{default}"


def _default(value: object) -> str:
    """Returns a short text of a default. Long ones, and those whose text differs between executions, are left out."""
    text = repr(value)
    return "..." if callable(value) or len(text) > 30 else text
