""".env.example lists the environment variables that the code and the shipped backends read, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest_agentbench
from pytest_agentbench.backends.spec import known_backends, load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.url import UrlSpec
from pytest_agentbench.lib.config import load_yaml
from pytest_agentbench.reports.ci import DETECTED
from pytest_agentbench.retriever.config import NAMED, RetrieverConfig, TavilySpec

PACKAGE = Path(pytest_agentbench.__file__).parent
ROOT = PACKAGE.parent

#: Variables that nobody sets for us: of the system, of Python, of a CI, of our own processes, and an old name of HF_HUB_CACHE.
OTHERS = frozenset(
    [
        *("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "HUGGINGFACE_HUB_CACHE"),
        *("GITHUB_ACTIONS", "GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY", *DETECTED),
    ]
)

#: Variables on the pages that are somebody else's: names as examples, settings of other programs, and what programs and CI are told.
ELSEWHERE = frozenset(
    [
        *("NAME", "MY_API_KEY", "EXPERTS_KEY", "JUDGE_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"),
        *("AGENTBENCH_SCENARIO", "AGENTBENCH_ANSWER", "AGENTBENCH_MODEL", "AGENTBENCH_ROLLOUT", "AGENTBENCH_SESSION"),
        *(
            "HF_ENDPOINT",
            "HF_HUB_OFFLINE",
            "HF_HUB_DISABLE_TELEMETRY",
            "HARBOR_TELEMETRY",
            "REAL_SERVERS",
            "VLLM_LOGGING_LEVEL",
            "VLLM_SERVER_DEV_MODE",
        ),
    ]
)

#: What a page calls a variable of the environment: one that it sets, and one of ours, of the hub or of a key.
ON_A_PAGE = re.compile(r"\bexport ([A-Z][A-Z0-9_]*)=|\b((?:AGENTBENCH|HF)_[A-Z_]+|[A-Z]+(?:_API)?_KEY|[A-Z]+_TOKEN)\b")

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
MAPPINGS = re.compile(r"environ|environment|inherited|own|above|env")  # what the code calls an environment


def names(node: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """Variables that an expression looks up in an environment."""
    match node:
        case ast.Call(func=ast.Attribute(value=mapping, attr="get"), args=[key, *_]) | ast.Subscript(value=mapping, slice=key):
            pass
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[mapping]):
            pass
        case _:
            return
    last = mapping.attr if isinstance(mapping, ast.Attribute) else mapping.id if isinstance(mapping, ast.Name) else ""
    text = constants.get(key.id, "") if isinstance(key, ast.Name) else key.value if isinstance(key, ast.Constant) else ""
    if MAPPINGS.fullmatch(last) and isinstance(text, str) and NAME.fullmatch(text):
        yield text


def read_by_code() -> set[str]:
    variables = set()
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {
            target.id: str(node.value.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        variables |= {name for node in ast.walk(tree) for name in names(node, constants)}
    return variables


def read_by_backends() -> set[str]:
    specs = [load_backend(name, ROOT) for name in known_backends(ROOT)]
    keys = {spec.api_key_env for spec in specs if isinstance(spec, UrlSpec) and spec.api_key_env}
    return keys | {name for spec in specs if isinstance(spec, StackSpec) for service in spec.services.values() for name in service.secrets}


def read_by_roles() -> set[str]:
    """Of the files of roles that come with suites."""
    files = [load_yaml(file) for file in (ROOT / "scenarios").glob("*/*_roles.yaml")]
    players = [player for said in files for player in (*said["roles"].values(), said.get("judge") or {})]
    return {player["api_key"] for player in players if "api_key" in player}


def read_by_the_retriever() -> set[str]:
    """Without settings of its own: another name is the user's."""
    return {TavilySpec().api_key, *(found[1] for found in NAMED.finditer(RetrieverConfig.model_fields["index_dir"].default))}


def listed() -> list[str]:
    return re.findall(r"^# export ([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_variable_is_listed() -> None:
    """Each variable that is read is in the file, and each in the file is read."""
    assert sorted((read_by_code() | read_by_backends() | read_by_roles() | read_by_the_retriever()) - OTHERS) == sorted(listed())


def test_pages_name_no_other() -> None:
    """What a page tells to set is in the file, or is known to be somebody else's."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "scenarios").glob("*/README.md")]
    named = {name for page in pages for pair in ON_A_PAGE.findall(page.read_text(encoding="utf-8")) for name in pair if name}

    assert set() == named - {*listed()} - ELSEWHERE


def test_the_others_are_read() -> None:
    """What the file leaves out on purpose is still something that the code reads."""
    assert set() == OTHERS - read_by_code() - {*DETECTED, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
