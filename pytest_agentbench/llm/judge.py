"""Asks judges (models that rate answers) for JSON that fits a schema.

Text around the JSON and unknown keys are ignored, and numbers in quotes are converted. Any other deviation is an error.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import fastjsonschema
import orjson

from pytest_agentbench.errors import InfraError, JudgeError, LimitReached
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.model_texts import validator
from pytest_agentbench.llm.client import LLM, Reply
from pytest_agentbench.records import Json, ToolCall

LONGEST = 50_000  # characters of an answer that are parsed, from its end
SHOWN = 200  # characters of an answer in an error
REFUSED = re.compile(r"HTTP 4\d\d: .*(response_format|json_schema|structured output)", re.IGNORECASE | re.DOTALL)
AGAIN = "That cannot be used: {fault}. Answer with one JSON object that fits the schema, and with nothing else."
SCHEMA = "\n\nAnswer with one JSON object that fits this schema, its keys in this order, and with nothing else:\n{schema}"


@dataclass(frozen=True)
class Form:
    """The JSON object that a judge has to answer with: a name and a JSON Schema."""

    name: str
    schema: Json  # JSON Schema of an object

    @property
    def text(self) -> str:
        return orjson.dumps(self.schema).decode()

    @property
    def response_format(self) -> Json:
        return {"type": "json_schema", "json_schema": {"name": self.name, "schema": self.schema, "strict": True}}


async def ask(judge: LLM, prompt: str, form: Form, **parameters: float) -> Json:
    """Asks a judge and returns its answer, a JSON object that fits the form. `parameters` are request fields such as temperature.

    If the server refuses `response_format`, the question is sent without it. If the answer does not fit the form, the judge is told why
    and asked once more. Raises JudgeError if the second answer does not fit either, and InfraError if the judge does not answer.
    """
    messages: list[Json] = [{"role": "user", "content": prompt + SCHEMA.replace("{schema}", form.text)}]
    reply = await _answer(judge, messages, form, parameters)
    try:
        return read(reply.text, form)
    except JudgeError as fault:
        messages += [reply.message, {"role": "user", "content": AGAIN.replace("{fault}", str(fault))}]
    return read((await _answer(judge, messages, form, parameters)).text, form)


def identity(judge: LLM, template: str, form: Form, parameters: Mapping[str, float]) -> Json:
    """Returns the model, prompt hash and parameters of a judgement. Judgements are comparable only if these are equal."""
    prompt = hashlib.sha256(f"{template}\n{form.text}".encode()).hexdigest()
    return {"model": judge.model, "prompt_sha256": prompt, "parameters": dict(parameters)}


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replaces `{name}` in a template for each name in `values`. Other braces stay, and braces within the values are not replaced."""
    return re.sub(r"\{(" + "|".join(map(re.escape, values)) + r")\}", lambda candidate: values[candidate[1]], template)


def numbered(lines: Iterable[str]) -> str:
    """Formats texts as a numbered list, one line each: `1. first`, `2. second`."""
    return "\n".join(f"{number}. {' '.join(line.split())}" for number, line in enumerate(lines, 1))


def calls_text(calls: Iterable[ToolCall]) -> str:
    """Formats tool calls for a judge: `1. transfer_funds(amount=5, to="Maria")`."""
    lines = []
    for call in calls:
        arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in call.arguments.items())
        lines.append(f"{call.name}({arguments}){f' failed: {call.detail or call.refusal}' if call.problem or call.refusal else ''}")
    return numbered(lines) or "No tool calls were made."


def read(text: str, form: Form) -> Json:
    """Returns the last JSON object in a judge's answer that fits the form. Ignores other text, such as code fences and reasoning.

    Numbers and booleans that were written as strings are converted. Raises JudgeError with the reason if no object fits.
    """
    fault = "there is no JSON object in it"
    for candidate in reversed([*_objects(text.rpartition("</think>")[2][-LONGEST:])]):
        corrected: Json = _corrected(candidate, form.schema)
        try:
            validator(form.text)(corrected)
        except fastjsonschema.JsonSchemaValueException as error:
            fault = str(error.message)
        else:
            return corrected
    raise JudgeError(f"{fault}; the judge said {beginning(text, SHOWN)!r}")


async def _answer(judge: LLM, messages: list[Json], form: Form, parameters: Mapping[str, Any]) -> Reply:
    try:
        if judge.structured:
            try:
                return await judge.chat(messages, response_format=form.response_format, **parameters)
            except InfraError as error:
                if not REFUSED.match(str(error)):
                    raise
                judge.structured = False
        return await judge.chat(messages, **parameters)
    except LimitReached as error:  # A limit of the judge must not count as a limit of the agent.
        raise JudgeError(f"a limit of the judge was reached: {error}") from error


def _objects(text: str) -> Iterator[Json]:
    """Yields the outermost JSON objects in a text, in order."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    at = text.find("{")
    while at >= 0:
        try:
            candidate, end = decoder.raw_decode(text, at)
            yield candidate
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _corrected(value: Any, schema: Json) -> Any:
    """Corrects unambiguous deviations of a value from a schema: removes unknown keys, and converts `"0.9"` to 0.9."""
    kind = schema.get("type")
    if kind == "object" and isinstance(value, dict):
        return {name: _corrected(value[name], each) for name, each in schema["properties"].items() if name in value}
    if not isinstance(value, str):
        return value
    if kind == "boolean":
        return {"true": True, "false": False}.get(value.strip().lower(), value)
    if kind == "number":
        try:
            return number if math.isfinite(number := float(value)) else value
        except ValueError:
            pass  # The validation reports the wrong value.
    return value
