"""Converts the LLMs of a configuration of the NeMo Agent Toolkit to a backend, sampling parameters and a judge."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_config.reading import NatPart, NatReading
from pytest_agentbench.records import JUDGE, Json

OPENAI, DYNAMO = "openai", "dynamo"

#: `_type` of an LLM -> its default URL and the environment variable with its key, as far as the toolkit has them.
LLMS: Mapping[str, tuple[str | None, str | None]] = {
    OPENAI: ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    DYNAMO: (None, None),
}

VARIABLE = re.compile(r"\$\{(\w+)\}")

#: Words for lengths of answers -> output tokens, and for pauses between calls -> milliseconds.
TOKENS: Mapping[str, int] = {"LOW": 128, "MEDIUM": 512, "HIGH": 2048}
PAUSES: Mapping[str, int] = {"LOW": 50, "MEDIUM": 250, "HIGH": 750}


def read_llm(reading: NatReading, name: str) -> tuple[Json, NatPart]:
    """Returns a backend.yaml for an LLM, without its name, and the LLM's keys for `sampling_of`."""
    kind, part = reading.component("llms", name, LLMS)
    backend = {"kind": "url", **_server(kind, part)}
    if kind == DYNAMO and part.take(bool, "enable_nvext_hints"):
        backend["labels"] = _labels(part)
    return backend, part


def _server(kind: str, part: NatPart) -> Json:
    """Returns the URL, the model and the name of the variable with the key of an LLM, as in a backend.yaml."""
    part.take(str, "_type")
    url, variable = LLMS[kind]
    given = part.take(str, "base_url")
    if given is None and url is None:
        raise ConfigError(f"{part.reading.file}: {'.'.join(part.path)} has no 'base_url'; add it")
    if given is not None:
        variable = None
    if key := VARIABLE.fullmatch(part.get(str, "api_key") or ""):
        part.take(str, "api_key")
        variable = key[1]
    server: Json = {"url": given or url, "model": part.need(str, "model_name", "model")}
    return {**server, "api_key_env": variable} if variable else server


def _labels(part: NatPart) -> Json:
    """Returns the key `labels` for the hints of an LLM. Missing hints have the toolkit's defaults, because it sends them."""
    labels: Json = {
        "kind": "dynamo",
        "total_requests": part.take(int, "nvext_prefix_total_requests") or 10,
        "osl": _level(part, "nvext_prefix_osl", TOKENS),
        "iat": _level(part, "nvext_prefix_iat", PAUSES),
    }
    if template := part.take(str, "nvext_prefix_id_template"):
        labels["prefix"] = template.replace("{uuid}", "{session}")
    return labels


def _level(part: NatPart, name: str, levels: Mapping[str, int]) -> int:
    """Returns a hint that is a number or one of the words LOW, MEDIUM and HIGH. The default is MEDIUM."""
    if isinstance(part.keys.get(name), int):
        return part.need(int, name)
    word = part.take(str, name) or "MEDIUM"
    if word.upper() not in levels:
        raise ConfigError(f"{part.reading.file}: {'.'.join((*part.path, name))} must be a number, or one of {', '.join(levels)}")
    return levels[word.upper()]


def sampling_of(part: NatPart) -> Json:
    """Returns the sampling parameters of an LLM, as in the settings of an agent."""
    given: Json = {
        "temperature": part.take(float, "temperature"),
        "top_p": part.take(float, "top_p"),
        "max_tokens": part.take(int, "max_tokens"),
        "seed": part.take(int, "seed"),
    }
    return {name: value for name, value in given.items() if value is not None}


def read_judge(reading: NatReading, name: str, agents_server: Json) -> Json:
    """Returns the key `judge` of a suite.yaml in a mapping, which is empty if the judge is the LLM of the agent.

    Args:
        reading: The configuration.
        name: The judge's LLM.
        agents_server: The backend.yaml of the agent's LLM.
    """
    kind, part = reading.component("llms", name, LLMS, JUDGE)
    server = _server(kind, part)
    part.take_if("temperature", 0)
    if all(server[key] == agents_server[key] for key in ("url", "model")):
        return {}
    judge = {"url": server["url"], "model": server["model"], "api_key": server.get("api_key_env")}
    return {JUDGE: {key: value for key, value in judge.items() if value is not None}}
