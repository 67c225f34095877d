"""Converts the workflow of a configuration of the NeMo Agent Toolkit to the settings of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pytest_agentbench.exports.nat_config.reading import NatPart, NatReading
from pytest_agentbench.records import Json

RETRIES = "parse_agent_response_max_retries"


class NatWorkflow(NamedTuple):
    """The agent of a configuration, and the components that it leads to."""

    agent: Json  # its settings in suite.yaml, without sampling parameters
    llm: str  # name of its LLM
    tools: list[str]  # names of its tools and groups of tools
    judge: str | None = None  # name of the LLM that judges its work
    client: str = ""  # beginning of model names that only chooses a client, and is not sent to a server


def read_workflow(reading: NatReading) -> NatWorkflow:
    """Returns the workflow. Raises ConfigError if it is an agent that has no counterpart here."""
    kind = reading.kind_of(("workflow",), {**WORKING, **JUDGED})
    part = reading.part(("workflow",), kind)
    part.take(str, "_type")
    if kind in WORKING:
        return WORKING[kind](part)
    inner_kind, inner = reading.component("functions", part.need(str, "wrapped_agent"), WORKING)
    inner.take(str, "_type")
    wrapped = WORKING[inner_kind](inner)
    settings = {
        "kind": JUDGED[kind],
        "wraps": wrapped.agent,
        **_same(part, int, "max_retries"),
        **_same(part, float, "min_confidence_threshold"),
        **_same(part, bool, "pass_feedback_to_agent"),
        **_same(part, str, "feedback_template", "evaluation_prompt_template"),
    }
    return wrapped._replace(agent=settings, judge=part.need(str, "evaluator_llm"))


def _react(part: NatPart) -> NatWorkflow:
    counted = part.take(int, RETRIES, "max_retries")
    settings = {
        "kind": "react",
        **_same(part, str, "system_prompt", "additional_instructions"),
        **_same(part, int, "max_history"),
        # The toolkit counts the first answer as one of the retries, and its default is 1.
        RETRIES: max(0, (1 if counted is None else counted) - 1),
        **_same(part, bool, "raise_on_parsing_failure", "include_tool_input_schema_in_tool_description", "normalize_tool_input_quotes"),
    }
    if (calls := part.take(int, "max_tool_calls", "max_iterations")) is not None:
        settings["max_tool_calls"] = calls
    if (retries := part.take(bool, "retry_agent_response_parsing_errors", "retry_parsing_errors")) is not None:
        settings["retry_agent_response_parsing_errors"] = retries
    part.take_if("pass_tool_call_errors_to_agent", value=True)
    part.take_if("use_native_tool_calling", value=False)
    return NatWorkflow(settings, part.need(str, "llm_name"), _tools(part))


def _tool_calling(part: NatPart) -> NatWorkflow:
    settings = {
        "kind": "tool_calling",
        "max_turns": part.take(int, "max_iterations") or 15,  # the toolkit's default
        **_same(part, str, "system_prompt"),
        **_same(part, dict, "truncation_retry"),
        **_same(part, int, "max_empty_response_retries"),
    }
    if "system_prompt" in settings and (more := part.take(str, "additional_instructions")):
        settings["system_prompt"] = f"{settings['system_prompt']} {more}"
    part.take_if("handle_tool_errors", value=True)
    return NatWorkflow(settings, part.need(str, "llm_name"), _tools(part))


def _adk(part: NatPart) -> NatWorkflow:
    prompt = part.take(str, "prompt")
    settings = {"kind": "tool_calling", **({} if prompt is None else {"system_prompt": prompt})}
    return NatWorkflow(settings, part.need(str, "llm"), _tools(part), client="openai/")


#: `_type` of an agent that works itself -> its conversion.
WORKING: Mapping[str, Callable[[NatPart], NatWorkflow]] = {"react_agent": _react, "tool_calling_agent": _tool_calling, "adk": _adk}

#: `_type` of an agent that judges another one's work -> the kind of agent here.
JUDGED: Mapping[str, str] = {
    "self_evaluating_agent": "self_evaluating",
    "self_evaluating_agent_with_feedback": "self_evaluating_with_feedback",
}


def _same(part: NatPart, kind: type, *names: str) -> Json:
    """Returns the keys that have the same name and meaning here."""
    values = {name: part.take(kind, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _tools(part: NatPart) -> list[str]:
    return [str(name) for name in part.take(list, "tool_names") or ()]
