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
from pytest_agentbench.lib.options import GIVEN
from pytest_agentbench.reports.ci import DETECTED
from pytest_agentbench.retriever.config import NAMED, RetrieverConfig, TavilySpec

PACKAGE = Path(pytest_agentbench.__file__).parent
ROOT = PACKAGE.parent

#: Variables of the system, of Slurm, of Python, of a CI, of our own processes and tests, and an old name of HF_HUB_CACHE. Users do not
#: set them for us.
OTHERS = frozenset(
    [
        *("PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONBREAKPOINT", "VIRTUAL_ENV", "HUGGINGFACE_HUB_CACHE"),
        *("GITHUB_ACTIONS", "GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY", *DETECTED),
        *("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_SHA"),
        *("AGENTBENCH_NODES_SILENCE", "SLURMD_NODENAME", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "KUBERNETES_SERVICE_HOST", "POD_NAME"),
        *("CI_PROJECT_URL", "CI_PROJECT_DIR", "CI_JOB_URL", "CI_COMMIT_SHA"),
    ]
)

#: Variables on pages that we do not read: names in examples, settings of other programs, and variables that programs and CI get.
ELSEWHERE = frozenset(
    [
        *("NAME", "MY_API_KEY", "EXPERTS_KEY", "JUDGE_KEY", "API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"),
        *("COMMENT_TOKEN", *GIVEN),
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

#: Matches a variable of the environment on a page: one that is exported, and one of ours, of the hub or of a key.
ON_A_PAGE = re.compile(r"\bexport ([A-Z][A-Z0-9_]*)=|\b((?:AGENTBENCH|HF)_[A-Z_]+|[A-Z]+(?:_API)?_KEY|[A-Z]+_TOKEN)\b")

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
MAPPINGS = re.compile(r"environ|environment|inherited|own|above|env")  # Names of environments in the code.


def names(node: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """Yields variables that an expression looks up in an environment."""
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
    """Returns the variables in the role files of suites."""
    files = [load_yaml(file) for file in (ROOT / "scenarios").glob("*/*_roles.yaml")]
    players = [player for said in files for player in (*said["roles"].values(), said.get("judge") or {})]
    return {player["api_key"] for player in players if "api_key" in player}


def read_by_the_retriever() -> set[str]:
    """Returns the variables in the retriever's defaults. Other names are the user's choice."""
    return {TavilySpec().api_key, *(found[1] for found in NAMED.finditer(RetrieverConfig.model_fields["index_dir"].default))}


def listed() -> list[str]:
    return re.findall(r"^# export ([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_variable_is_listed() -> None:
    """.env.example lists each variable that is read, and no other."""
    assert sorted((read_by_code() | read_by_backends() | read_by_roles() | read_by_the_retriever()) - OTHERS) == sorted(listed())


def test_variables_on_pages_are_known() -> None:
    """A variable that a page tells to set is in the file, or known to belong to another program."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "scenarios").glob("*/README.md")]
    named = {name for page in pages for pair in ON_A_PAGE.findall(page.read_text(encoding="utf-8")) for name in pair if name}

    assert set() == named - {*listed()} - ELSEWHERE


def test_unlisted_variables_are_read() -> None:
    """The variables that the file leaves out on purpose are read by the code."""
    assert set() == OTHERS - read_by_code() - {*DETECTED, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
