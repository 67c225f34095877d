"""Checks a suite's own code (agent, tools, scorers) before the backend boots.

Also reads the scales (direction, range and unit of scores) that the scorers declare.

The code is loaded in a process of its own (`python -m pytest_agentbench.rollouts.isolation.codecheck`), because it may exit, crash or hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import brings_code, code_place
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec, json_text, wire
from pytest_agentbench.lib.process import child_environment, end_text, first_line
from pytest_agentbench.lib.standard_streams import AT_IMPORT, refuse_input
from pytest_agentbench.lib.user_code import is_import_path, search_path
from pytest_agentbench.lib.wire import end_with_parent, read_config
from pytest_agentbench.records import Scale
from pytest_agentbench.rollouts.isolation.protocol import FROM_CODE_CHECK, CodeCheckConfig, Declarations, FromCodeCheck, NotLoaded
from pytest_agentbench.rollouts.rollout import prepare
from pytest_agentbench.scorers import declared_scale
from pytest_agentbench.suites.datasets import LIMIT
from pytest_agentbench.suites.suite import SUITE_FILE, PoolSuite, Suite
from pytest_agentbench.tools import factory as tool_factory


def brings_any(suite: PoolSuite, variants: Iterable[str]) -> bool:
    """Returns whether a suite has code of its own: a scorer, or the agent or tools of one of `variants`."""
    return any(map(is_import_path, suite.scorers)) or any(
        brings_code(suite.agent_of(each), suite.folder) or tool_factory.brings_code(suite.tools_of(each)) for each in variants
    )


def check_code(suite: Suite, variants: Sequence[str], seconds: float = LIMIT) -> FromCodeCheck:
    """Loads the code of a suite in a process of its own, which is killed after `seconds`.

    Returns the scales (direction, range and unit of scores) that the suite's scorers declare, or why loading failed.
    """
    command = [sys.executable, "-m", "pytest_agentbench.rollouts.isolation.codecheck"]
    own_tools = any(tool_factory.brings_code(suite.tools_of(each)) for each in variants)  # Own tools are checked against the scenarios.
    sent = suite.for_pool() if own_tools else replace(suite.for_pool(), scenarios=())
    config = CodeCheckConfig(sent, tuple(variants), tuple(search_path()))
    with tempfile.TemporaryFile() as output:
        output.write(json_text.dumps_any(codec.plain(config)) + b"\n")
        output.seek(0)
        child = subprocess.Popen(command, stdin=output, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=child_environment())
    with child:
        answer, expired = first_line(child, seconds)
    if answer:
        return FROM_CODE_CHECK.read(json.loads(answer))
    end = f"did not end within {seconds:g} s" if expired else end_text(child.returncode)
    why = f"{suite.folder / SUITE_FILE}: the process that imports the suite's code {end}; importing it must only define things"
    return NotLoaded(why)


def main() -> NoReturn:
    """Entry point of the process: writes the scales of the scores, or the first fault, to stdout as one line, and exits.

    Discards what the suite's code prints, and does not wait for its threads.
    """
    end_with_parent(os.getppid(), signal.SIGKILL)
    answer = os.dup(1)
    os.dup2(2, 1)
    os.write(answer, json.dumps(wire.header(_answer())).encode() + b"\n")
    os._exit(0)


def _answer() -> FromCodeCheck:
    try:
        config = read_config(CodeCheckConfig)
    except ValueError as error:
        return NotLoaded(str(error))
    refuse_input(AT_IMPORT)
    sys.path[:] = config.sys_path
    scales: dict[str, Scale] = {}
    try:
        for variant in config.variants:
            setup = prepare(config.suite, variant)
            _check_isolated(config.suite, variant, setup.agent)
            scales |= {score: declared_scale(score, scorer) for score, scorer in setup.scorers.items()}
    except ConfigError as error:
        return NotLoaded(str(error))
    return Declarations(scales)


def _check_isolated(suite: PoolSuite, variant: str, agent: Agent) -> None:
    """Raises ConfigError if the suite's own agent runs programs in a sandbox, because a process of `isolation: process` has none."""
    kind = suite.agent_of(variant)["kind"]
    if suite.isolation == "process" and brings_code(suite.agent_of(variant), suite.folder) and code_place(agent):
        why = "runs programs in a sandbox, which a process for each rollout does not have; leave `isolation` out"
        raise ConfigError(f"{suite.folder / SUITE_FILE}: isolation: the agent {kind!r} {why}")


if __name__ == "__main__":
    main()
