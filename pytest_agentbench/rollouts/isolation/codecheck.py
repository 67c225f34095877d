"""`python -m pytest_agentbench.rollouts.isolation.codecheck`: loads the code that a suite brings once, to see whether it can be loaded.

It is done before anything boots and in a process of its own, which may leave, crash and hang as it likes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import brings_code, code_place
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.child import end_with_parent, read_config
from pytest_agentbench.lib.import_path import is_import_path, search_path
from pytest_agentbench.lib.process import child_environment, end_text, first_line
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.rollout import prepare
from pytest_agentbench.suites.suite import SUITE_FILE, Suite
from pytest_agentbench.tools import factory as tool_factory

LIMIT = 300.0  # seconds for an import; those of large frameworks from a slow disk take a minute


def brings_any(suite: Suite, variants: Iterable[str]) -> bool:
    """Whether a suite brings code: a scorer, or the agent or the tools of one of these variants."""
    return any(map(is_import_path, suite.scorers)) or any(
        brings_code(suite.agent_of(each), suite.folder) or tool_factory.brings_code(suite.tools_of(each)) for each in variants
    )


def faults(suites: Sequence[tuple[Suite, Sequence[str]]]) -> list[str]:
    """What is wrong with the code of each suite under its variants, all looked at side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return [*threads.map(lambda each: fault(*each), suites)]


def fault(suite: Suite, variants: Sequence[str], seconds: float = LIMIT) -> str:
    """Why the code of a suite cannot be loaded, in a sentence that names its suite.yaml; empty where it can."""
    command = [sys.executable, "-m", "pytest_agentbench.rollouts.isolation.codecheck"]
    own_tools = any(tool_factory.brings_code(suite.tools_of(each)) for each in variants)  # which should be those of the data
    config = {"suite": (suite if own_tools else replace(suite, scenarios=())).to_wire(), "variants": [*variants], "sys_path": search_path()}
    with tempfile.TemporaryFile() as output:
        output.write(json.dumps(config, default=str).encode() + b"\n")
        output.seek(0)
        child = subprocess.Popen(command, stdin=output, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=child_environment())
    with child:
        answer, expired = first_line(child, seconds)
    if answer:
        sentence: str = json.loads(answer)
        return sentence
    end = f"did not end within {seconds:g} s" if expired else end_text(child.returncode)
    return f"{suite.folder / SUITE_FILE}: the process that imports the suite's code {end}; importing it should only define things"


def main() -> NoReturn:
    """Answers with the first fault; what the code prints is nobody's, and what it leaves running ends here."""
    end_with_parent(os.getppid(), signal.SIGKILL)
    config = read_config()
    answer = os.dup(1)
    os.dup2(2, 1)
    sys.path[:] = config["sys_path"]
    os.write(answer, json.dumps(_first_fault(config)).encode() + b"\n")
    os._exit(0)


def _first_fault(config: Json) -> str:
    suite = Suite.from_wire(config["suite"])
    try:
        for variant in config["variants"]:
            _check_isolated(suite, variant, prepare(suite, variant).agent)
    except ConfigError as error:
        return str(error)
    return ""


def _check_isolated(suite: Suite, variant: str, agent: Agent) -> None:
    """Raises ConfigError for an agent of the suite's own that would run where no sandbox for its programs is."""
    kind = suite.agent_of(variant)["kind"]
    if suite.isolation == "process" and brings_code(suite.agent_of(variant), suite.folder) and code_place(agent):
        why = "runs programs in a sandbox, which a process for each rollout does not have; leave `isolation` out"
        raise ConfigError(f"{suite.folder / SUITE_FILE}: isolation: the agent {kind!r} {why}")


if __name__ == "__main__":
    main()
