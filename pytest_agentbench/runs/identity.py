"""Computes the identity of a run: everything that may have influenced its numbers, such as machine, packages and state of the repository.

Unknown values are null and never guessed.
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

#: Packages whose versions may influence the numbers of a run.
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
    """Returns the environment of this process, without any network access. Unknown values are None."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count(),
        packages={name: version for name in PACKAGES if (version := installed_version(name))},
        git=_git(root),
    )


def unknown_environment(python: str = "unknown") -> Environment:
    """Returns the environment of a run about which nothing but perhaps the version of Python is known."""
    return Environment(python, "unknown", None, {}, None)


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution, or None if it is not installed."""
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


#: Parts of an identity, the most likely causes of a difference first.
PARTS = ("code", "packages", "backend", "model", "hardware", "host", "data", "prompts", "tools", "agent", "scoring", "options", "more")

#: Settings of run.json that can change the measured numbers.
OPTIONS = ("concurrency", "limit", "variants", "retries", "cache", "taps", "inline", "budgets")

#: Fields of a data set that distinguish it from others.
DATA = ("name", "format", "sha256", "version", "size", "label_source")


class SuiteSetup(NamedTuple):
    """The parts of a run's identity that depend on one suite under one variant."""

    data: Json
    prompts: dict[str, str] | None
    tools: str
    agent: Json
    scoring: Json
    options: SuiteOptions


def suite_setup(suite: Suite, variant: str, trials: int | str) -> SuiteSetup:
    """Returns the setup of a suite under a variant. `trials` is their number in this session, or text such as `auto:5`."""
    return SuiteSetup(
        data={name: getattr(suite.dataset, name) for name in DATA},
        prompts=prompt_hashes(suite, variant),
        tools=tools_hash(suite),
        agent=agent_identity(suite, variant),
        scoring=scoring_identity(suite),
        options=SuiteOptions(trials, suite.timeout, suite.isolation),
    )


def tools_hash(suite: Suite) -> str:
    """Returns the hash of all tool schemas of a suite."""
    toolsets = {id(scenario.tools): scenario.tools for scenario in suite.scenarios}  # scenarios share sets of tools
    return digest(sorted({_toolset_hash(tools) for tools in toolsets.values()}))


def _toolset_hash(tools: tuple[Tool, ...]) -> str:
    """Returns the hash of a set of tools. Uses orjson, because `json` takes half a second for the 3,675 sets of BFCL."""
    try:
        return hashlib.sha256(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except TypeError:  # integers beyond 64 bits
        return digest(codec.plain(tools))


def run_identity(run: SessionFacts, suites: Mapping[str, SuiteSetup], backend: Json, facts: Json) -> RunIdentity:
    """Returns the identity of a run.

    Args:
        run: Facts of the session.
        suites: `suite` or `suite-variant` -> its setup.
        backend: What decides how the backend answers, from its YAML.
        facts: Facts that the backend reports at the end of the session, such as its model and its GPUs.
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
    """Returns the model name of the CPU, or None if the kernel does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
