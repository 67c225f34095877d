"""How the policy `lexical` answers a request for JSON by a schema: a baseline that counts shared words, and no judge to trust.

It knows the two forms that this package asks judges to fill in, and reads the sections `<request>`, `<goals>`, `<tool_calls>` and
`<answer>` of their prompts. Of any other schema it gives the least object that fits; patterns and formats are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from pytest_agentbench.engine.lexical.words import stems
from pytest_agentbench.lib.model_texts import tagged
from pytest_agentbench.records import Json

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
GOAL = re.compile(r"goal_(\d+)")
DEEPEST = 20  # levels of a schema that refers to itself


def wanted_schema(request: Mapping[str, Any]) -> Json | None:
    """The schema that the answer has to fit; None for a request that wants a text."""
    response_format = request.get("response_format") or {}
    schema: Json | None = response_format["json_schema"]["schema"] if response_format.get("type") == "json_schema" else None
    return schema


def judgement(schema: Json, prompt: str) -> str:
    """JSON that fits the schema: what the prompt's words say where it is a form for judges."""
    properties = schema.get("properties")
    names = {*properties} if isinstance(properties, dict) else set()
    if {"is_sufficient", "confidence"} <= names:
        fields = {**minimal(schema, schema), **_verdict(prompt)}
        return orjson.dumps({name: fields[name] for name in fields if name in names}).decode()
    if names and all(GOAL.fullmatch(name) for name in names):
        return orjson.dumps(_completion(prompt, len(names))).decode()
    return orjson.dumps(minimal(schema, schema)).decode()


def minimal(schema: Any, whole: Json, depth: int = 0) -> Any:
    """The least value that fits a schema, which is a part of the whole one."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    if values := [schema["const"]] if "const" in schema else schema.get("enum"):
        return values[0]
    if (other := _other(schema, whole)) is not None:
        return minimal(other, whole, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "array":
            return [minimal(schema.get("items"), whole, depth + 1) for _ in range(schema.get("minItems", 0))]
        case None | "object":
            properties = schema.get("properties") or {}
            return {name: minimal(properties.get(name), whole, depth + 1) for name in schema.get("required") or ()}
        case simple:
            return _simple(str(simple), schema)


def _other(schema: Json, whole: Any) -> Any:
    """The schema that one stands for, if it stands for another."""
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return schema[name][0]
    if "$ref" not in schema:
        return None
    for part in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
        whole = whole.get(part) if isinstance(whole, dict) else None
    return whole


def _simple(kind: str, schema: Json) -> Any:
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return min(least, schema.get("maximum", least))
    return {"string": "-" * schema.get("minLength", 0), "boolean": False}.get(kind)


def _verdict(prompt: str) -> Json:
    """Sufficient when at least half of the request's sentences share a word with what was called and said."""
    done = _done(prompt)
    sentences = [each for each in SENTENCE_END.split(_section(prompt, "request")) if stems(each)]
    missing = [each for each in sentences if not done & {*stems(each)}]
    share = 1 - len(missing) / len(sentences) if sentences else 1.0
    return {
        "reasoning": f"{len(sentences) - len(missing)} of {len(sentences)} sentences share a word with the tool calls and the answer.",
        "missing_steps": missing,
        "suggestions": f"Look again at: {missing[0]}" if missing else "",
        "is_sufficient": share >= 0.5,
        "confidence": round(max(share, 1 - share), 2),
    }


def _completion(prompt: str, count: int) -> Json:
    """A goal is completed when at least half of its words are among those of what was called and said."""
    done = _done(prompt)
    goals = dict(re.findall(r"^(\d+)\. (.*)$", _section(prompt, "goals"), re.MULTILINE))
    judgements: Json = {}
    for number in range(1, count + 1):
        words = {*stems(goals.get(str(number), ""))}
        shared = len(words & done)
        reasoning = f"{shared} of {len(words)} words are among those of the tool calls and the answer."
        judgements[f"goal_{number}"] = {"reasoning": reasoning, "completed": bool(words) and 2 * shared >= len(words)}
    return judgements


def _done(prompt: str) -> set[str]:
    return {*stems(f"{_section(prompt, 'tool_calls')} {_section(prompt, 'answer')}")}


def _section(prompt: str, name: str) -> str:
    sections = tagged(prompt, name)
    return sections[0].strip() if sections else ""
