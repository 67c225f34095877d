"""The identity of a run: everything that its numbers may be owed to, with the machine, the packages and the state of the repository.
What is not known is null, never guessed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import orjson

from pytest_agentbench.lib import codec
from pytest_agentbench.records import Json
from pytest_agentbench.runs.provenance import (
    BackendIdentity,
    Git,
    Hardware,
    HostIdentity,
    MeasuringOptions,
    ModelIdentity,
    RunIdentity,
    SuiteOptions,
)
from pytest_agentbench.runs.run_file import Environment, SessionFacts
from pytest_agentbench.runs.sessions import prompt_hashes
from pytest_agentbench.suites.hashes import agent_identity, digest, scoring_identity
from pytest_agentbench.suites.suite import Suite, Tool

#: What a run may owe its numbers to, beside the backend.
PACKAGES = (
    "pytest-agentbench",
    "pytest",
    "pytest-xdist",
    "aiohttp",
    "openai",
    "uvloop",
    "orjson",
    "pydantic",
    "numpy",
    "scipy",
    "bfcl-eval",
)


def environment(root: Path) -> Environment:
    """What this run ran on, as far as it can be known without asking the network."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count(),
        packages={name: version for name in PACKAGES if (version := _version(name))},
        git=_git(root),
    )


def unknown_environment(python: str = "unknown") -> Environment:
    """The same, where nothing can be found out."""
    return Environment(python, "unknown", None, {}, None)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path) -> Git | None:
    def run_git(*words: str) -> bytes | None:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = run_git("rev-parse", "HEAD")
    if commit is None:
        return None
    dirty = bool(run_git("status", "--porcelain", "--untracked-files=no"))
    changes = run_git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color") if dirty else None
    return Git(commit.decode(), dirty, None if changes is None else hashlib.sha256(changes).hexdigest()[:16])


#: Parts of an identity, in the order in which people look for the cause of a difference.
PARTS = ("code", "packages", "backend", "model", "hardware", "host", "data", "prompts", "tools", "agent", "scoring", "options", "more")

#: Of the settings in run.json, those that can change what is measured.
OPTIONS = ("concurrency", "limit", "variants", "retries", "cache", "taps", "inline", "budgets")

#: Of a data set, what tells it from another one.
DATA = ("name", "format", "sha256", "version", "size", "label_source")


class SuiteSetup(NamedTuple):
    """What a suite brings to a run under a variant."""

    data: Json
    prompts: dict[str, str] | None
    tools: str
    agent: Json
    scoring: Json
    options: SuiteOptions


def suite_setup(suite: Suite, variant: str, trials: int | str) -> SuiteSetup:
    """`trials` are those of this session, or how their number comes about."""
    return SuiteSetup(
        data={name: getattr(suite.dataset, name) for name in DATA},
        prompts=prompt_hashes(suite, variant),
        tools=tools_hash(suite),
        agent=agent_identity(suite, variant),
        scoring=scoring_identity(suite),
        options=SuiteOptions(trials, suite.timeout, suite.isolation),
    )


def tools_hash(suite: Suite) -> str:
    """Of all tool schemas of a suite."""
    toolsets = {id(scenario.tools): scenario.tools for scenario in suite.scenarios}  # scenarios share them
    return digest(sorted({_toolset_hash(tools) for tools in toolsets.values()}))


def _toolset_hash(tools: tuple[Tool, ...]) -> str:
    """The JSON library of the standard library takes half a second for BFCL's 3,675 sets."""
    try:
        return hashlib.sha256(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except TypeError:  # integers beyond 64 bits
        return digest(codec.plain(tools))


def run_identity(run: SessionFacts, suites: Mapping[str, SuiteSetup], backend: Json, facts: Json) -> RunIdentity:
    """The identity of a run.

    `suites` has the setup of each suite under each variant; `backend` and `facts` are the backend's own.
    """
    environment, settings = run.environment, run.settings
    model, hardware = facts.get("model") or {}, facts.get("hardware") or {}
    gpus = hardware.get("gpus")
    identity = RunIdentity(
        code=environment.git,
        packages=environment.packages,
        backend=BackendIdentity(
            hash=digest(backend),
            spec=backend,
            services=facts.get("services"),
            environment=facts.get("environment"),
            files=facts.get("files"),
            server=facts.get("server") or None,
        ),
        model=ModelIdentity(run.backend.served_model, model.get("revision"), model.get("files")),
        hardware=Hardware(None if gpus is None else tuple(gpus), hardware.get("driver")),
        host=HostIdentity(environment.cpus, _cpu(), platform.machine(), platform.release(), environment.python),
        data={name: setup.data for name, setup in suites.items()},
        prompts={name: setup.prompts for name, setup in suites.items()},
        tools={name: setup.tools for name, setup in suites.items()},
        agent={name: setup.agent for name, setup in suites.items()},
        scoring={name: setup.scoring for name, setup in suites.items()},
        options=MeasuringOptions(
            **{name: getattr(settings, name) for name in OPTIONS},
            warm=run.backend.reused,
            suites={name: setup.options for name, setup in suites.items()},
        ),
        more=environment.more,
        hashes={},
    )
    return hashed(identity)


def hashed(identity: RunIdentity) -> RunIdentity:
    """Returns the identity with the hashes of its parts."""
    return replace(identity, hashes={part: digest(codec.plain(getattr(identity, part))) for part in PARTS})


def _cpu() -> str | None:
    """The model of the CPUs; None where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
