"""The identity of a run: everything that its numbers may be owed to, in one place. What is not known is null, never guessed."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from pathlib import Path

import orjson

from pytest_agentbench.agents.factory import brings_code, make_agent, prompts_of
from pytest_agentbench.records import Json
from pytest_agentbench.suites.hashes import agent_identity, digest, scoring_identity
from pytest_agentbench.suites.suite import Suite, Tool

#: Parts of an identity, in the order in which people look for the cause of a difference.
PARTS = ("code", "packages", "backend", "model", "hardware", "host", "data", "prompts", "tools", "agent", "scoring", "options", "more")

#: Of the settings in run.json, those that can change what is measured.
OPTIONS = ("concurrency", "limit", "variants", "retries", "cache", "taps", "inline", "budgets")

#: What `environment` has of its own; the rest was added by hooks.
OWN = ("python", "platform", "cpus", "packages", "git")

#: Of a data set, what tells it from another one.
DATA = ("name", "format", "sha256", "version", "size", "label_source")


def suite_setup(suite: Suite, variant: str, trials: int | str) -> Json:
    """What a suite brings to a run under a variant; `trials` are those of this session, or how their number comes about."""
    data = asdict(suite.dataset)
    return {
        "data": {name: data[name] for name in DATA},
        "prompts": prompt_hashes(suite, variant),
        "tools": tools_hash(suite),
        "agent": agent_identity(suite, variant),
        "scoring": scoring_identity(suite),
        "options": {"trials": trials, "timeout": suite.timeout, "isolation": suite.isolation},
    }


def prompt_hashes(suite: Suite, variant: str) -> Json | None:
    """Option -> hash of each text that the agent tells a model besides the scenario; None of an agent that is the suite's own code."""
    settings = suite.agent_of(variant)
    if brings_code(settings, suite.folder):  # it is imported in the pool only; the hash of its file is among the settings
        return None
    return {name: digest(text) for name, text in prompts_of(make_agent(settings, suite.folder)).items()}


def tools_hash(suite: Suite) -> str:
    """Of all tool schemas of a suite."""
    toolsets = {id(scenario.tools): scenario.tools for scenario in suite.scenarios}  # scenarios share them
    return digest(sorted({_toolset_hash(tools) for tools in toolsets.values()}))


def _toolset_hash(tools: tuple[Tool, ...]) -> str:
    """The JSON library of the standard library takes half a second for BFCL's 3,675 sets."""
    try:
        return hashlib.sha256(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except TypeError:  # integers beyond 64 bits
        return digest([asdict(tool) for tool in tools])


def run_identity(run: Json, suites: Json, backend: Json, facts: Json) -> Json:
    """The identity of a run from its run.json.

    `suites` holds the `suite_setup` of each suite under each variant; `backend` and `facts` are the backend's own.
    """
    environment, settings = run["environment"], run["settings"]
    model, hardware = facts.get("model") or {}, facts.get("hardware") or {}
    found: Json = {
        "code": environment["git"],
        "packages": environment["packages"],
        "backend": {
            "hash": digest(backend),
            "spec": backend,
            "services": facts.get("services"),
            "environment": facts.get("environment"),
            "files": facts.get("files"),
            "server": facts.get("server") or None,
        },
        "model": {"name": run["backend"]["served_model"], "revision": model.get("revision"), "files": model.get("files")},
        "hardware": {"gpus": hardware.get("gpus"), "driver": hardware.get("driver")},
        "host": {
            "cpus": environment["cpus"],
            "cpu": _cpu(),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "python": environment["python"],
        },
        **{part: {name: setup[part] for name, setup in suites.items()} for part in ("data", "prompts", "tools", "agent", "scoring")},
        "options": {
            **{name: settings.get(name) for name in OPTIONS},
            "warm": run["backend"].get("reused"),
            "suites": {name: setup["options"] for name, setup in suites.items()},
        },
        "more": {name: value for name, value in environment.items() if name not in OWN},
    }
    return {**found, "hashes": {part: digest(found[part]) for part in PARTS}}


def _cpu() -> str | None:
    """The model of the CPUs; None where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
