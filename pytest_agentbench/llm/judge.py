"""How a judge is asked: for JSON by a schema, read tolerantly, checked strictly, and never guessed."""

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
from pytest_agentbench.lib.json_schema import validator
from pytest_agentbench.llm.client import LLM, Reply
from pytest_agentbench.records import Json, ToolCall

LONGEST = 50_000  # characters of an answer that are read, from its end
SHOWN = 200  # characters of an answer that an error quotes
REFUSED = re.compile(r"HTTP 4\d\d: .*(response_format|json_schema|structured output)", re.IGNORECASE | re.DOTALL)
AGAIN = "That cannot be used: {fault}. Answer with one JSON object that fits the schema, and with nothing else."
SCHEMA = "\n\nAnswer with one JSON object that fits this schema, its keys in this order, and with nothing else:\n{schema}"


@dataclass(frozen=True)
class Form:
    """What a judge fills in."""

    name: str
    schema: Json  # of an object

    @property
    def text(self) -> str:
        return orjson.dumps(self.schema).decode()

    @property
    def response_format(self) -> Json:
        return {"type": "json_schema", "json_schema": {"name": self.name, "schema": self.schema, "strict": True}}


async def ask(judge: LLM, prompt: str, form: Form, **parameters: float) -> Json:
    """The form as the judge filled it in; `parameters` are request fields.

    A server that refuses `response_format` is asked without it. What does not fit is told to the judge once.
    Raises JudgeError when it still does not fit, and InfraError when the judge does not answer.
    """
    messages: list[Json] = [{"role": "user", "content": prompt + SCHEMA.replace("{schema}", form.text)}]
    reply = await _answer(judge, messages, form, parameters)
    try:
        return read(reply.text, form)
    except JudgeError as fault:
        messages += [reply.message, {"role": "user", "content": AGAIN.replace("{fault}", str(fault))}]
    return read((await _answer(judge, messages, form, parameters)).text, form)


def identity(judge: LLM, template: str, form: Form, parameters: Mapping[str, float]) -> Json:
    """Who judged, and by what: two judgements compare only where this is the same."""
    prompt = hashlib.sha256(f"{template}\n{form.text}".encode()).hexdigest()
    return {"model": judge.model, "prompt_sha256": prompt, "parameters": dict(parameters)}


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """The template with `{name}` replaced for each of the values; other braces stay, and what is put in is not looked at again."""
    return re.sub(r"\{(" + "|".join(map(re.escape, values)) + r")\}", lambda candidate: values[candidate[1]], template)


def numbered(lines: Iterable[str]) -> str:
    """`1. first`, `2. second`, each on a line of its own."""
    return "\n".join(f"{number}. {' '.join(line.split())}" for number, line in enumerate(lines, 1))


def calls_text(calls: Iterable[ToolCall]) -> str:
    """The calls as a judge gets to see them: `1. transfer_funds(amount=5, to="Maria")`."""
    lines = []
    for call in calls:
        arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in call.arguments.items())
        lines.append(f"{call.name}({arguments}){f' failed: {call.detail or call.refusal}' if call.problem or call.refusal else ''}")
    return numbered(lines) or "No tool calls were made."


def read(text: str, form: Form) -> Json:
    """The last object in an answer that fits the form; code fences, thoughts and whatever else stands around it do not matter.

    A number or a truth value that was written as a text is taken as what it says. Raises JudgeError with what is wrong.
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
    except LimitReached as error:  # the judge's limit is none of the agent's
        raise JudgeError(f"the judge ran into a limit: {error}") from error


def _objects(text: str) -> Iterator[Json]:
    """The JSON objects in a text, outermost ones only, in order."""
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
    raise ValueError(f"{constant} is no JSON")


def _corrected(value: Any, schema: Json) -> Any:
    """The value as the schema has it, where there is no doubt what was meant: without unknown keys, and no `"0.9"` for 0.9."""
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
            pass  # the schema says what is wrong
    return value
