"""Workflows of the NeMo Agent Toolkit become settings of agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.exports.nat_config.agents import read_workflow
from pytest_agentbench.exports.nat_config.reading import NatReading


def agent_of(file: Path, keys: Any) -> tuple[Any, list[str]]:
    """Returns the agent, and the keys of the workflow that were not used."""
    file.write_text(yaml.safe_dump({"workflow": {"llm_name": "m", **keys}}))
    reading = NatReading(file)
    agent = read_workflow(reading).agent
    return agent, [path.removeprefix("workflow.") for path, _ in reading.left_out()]


@pytest.mark.parametrize(
    ("given", "retries"),
    [({}, 0), ({"parse_agent_response_max_retries": 3}, 2), ({"max_retries": 1}, 0), ({"parse_agent_response_max_retries": 0}, 0)],
)
def test_parse_retries(given: Any, retries: int, tmp_path: Path) -> None:
    """The toolkit counts the first answer as one of the retries, and allows one by default."""
    agent, left_out = agent_of(tmp_path / "a.yml", {"_type": "react_agent", **given})

    assert (retries, []) == (agent["parse_agent_response_max_retries"], left_out)


def test_older_names(tmp_path: Path) -> None:
    """Older names of keys are read. Beside the newer name, the older one is named as not carried over."""
    older = {"max_iterations": 4, "retry_parsing_errors": False}
    agent, left_out = agent_of(tmp_path / "a.yml", {"_type": "react_agent", **older})

    assert (4, False, []) == (agent["max_tool_calls"], agent["retry_agent_response_parsing_errors"], left_out)
    agent, left_out = agent_of(tmp_path / "a.yml", {"_type": "react_agent", **older, "max_tool_calls": 5})
    assert (5, ["max_iterations"]) == (agent["max_tool_calls"], left_out)


def test_settings_that_cannot_be_otherwise(tmp_path: Path) -> None:
    """A switch counts as carried over only in the position in which agents here behave anyway."""
    usual = {"_type": "react_agent", "pass_tool_call_errors_to_agent": True, "use_native_tool_calling": False}
    unusual = {"_type": "react_agent", "pass_tool_call_errors_to_agent": False, "use_native_tool_calling": True}

    assert ([], ["pass_tool_call_errors_to_agent", "use_native_tool_calling"]) == (
        agent_of(tmp_path / "a.yml", usual)[1],
        sorted(agent_of(tmp_path / "a.yml", unusual)[1]),
    )
