"""What the numbers of a run may be owed to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_agentbench.records import Json


@dataclass(frozen=True)
class Git:
    """The state of a git repository."""

    commit: str
    dirty: bool  # whether tracked files were changed
    diff: str | None  # hash of the changes in tracked files; null without any


@dataclass(frozen=True)
class BackendIdentity:
    """What decides how a backend answers."""

    hash: str  # of `spec`; rollouts have it in `content.backend`
    spec: Json  # what decides how it answers, without names and notes
    # of a stack: service -> `packages` (versions of the engines in its environment and of what they compute with), `image`,
    # `digest`, each null where nobody knows
    services: Json | None = None
    # of a stack: the variables that its processes inherit and engines are set up by (`VLLM_*`, `SGLANG_*`, `DYN_*`, `NCCL_*`,
    # `CUDA_*`, `HF_*`, `TORCH*` and others); of one whose name looks secret only that it is set
    environment: Json | None = None
    files: Json | None = None  # of a stack: file that its YAML names with `{here}` -> hash
    server: Json | None = None  # what a server of a stack or URL tells: `version`, as vLLM has it, and `owned_by`, of `/v1/models`


@dataclass(frozen=True)
class ModelIdentity:
    """Which weights answered."""

    name: str | None  # as `backend.served_model`
    revision: str | None  # commit on the Hugging Face hub of the weights in this machine's cache
    files: str | None  # of a model that is a folder: hash of names, sizes, and each file's first and last MiB


@dataclass(frozen=True)
class Hardware:
    """What the backend ran on."""

    gpus: tuple[str | None, ...] | None  # names of the leased ones; null of a backend elsewhere
    driver: str | None


@dataclass(frozen=True)
class HostIdentity:
    """This machine."""

    cpus: int | None
    cpu: str | None  # model
    machine: str
    kernel: str
    python: str


@dataclass(frozen=True)
class SuiteOptions:
    """What a suite says of its rollouts."""

    trials: int | str  # `auto:5` where they were added until the verdict stood
    timeout: float  # seconds
    isolation: str


@dataclass(frozen=True)
class MeasuringOptions:
    """The options that change what is measured."""

    concurrency: int | None  # as in `settings`
    limit: int | None
    variants: tuple[str, ...]
    retries: int
    cache: str  # policy for the prefix cache
    taps: int
    inline: bool
    budgets: Mapping[str, float | None]  # seconds
    warm: bool | None  # whether a stack was kept, so that its caches were warm; null of other backends
    suites: Mapping[str, SuiteOptions]  # for the keys of `suites`


@dataclass(frozen=True)
class RunIdentity:
    """[What the numbers may be owed to](compare.md#the-identity-of-a-run), for comparing runs; what is not known is null."""

    code: Git | None  # as `environment.git`
    packages: Mapping[str, str]  # as `environment.packages`
    backend: BackendIdentity
    model: ModelIdentity
    hardware: Hardware
    host: HostIdentity
    data: Mapping[str, Json]  # for the keys of `suites`: of `suites.*.dataset` what tells one data set from another
    prompts: Mapping[str, Mapping[str, str] | None]  # option -> hash of each text that the agent tells a model; null of a suite's own code
    tools: Mapping[str, str]  # hash of all tool schemas
    agent: Mapping[str, Json]  # settings, and hashes of the files that they name
    scoring: Mapping[str, Json]  # scorers with their options, the judge, and hashes of the files that they name
    options: MeasuringOptions
    more: Json  # what the hook `pytest_agentbench_update_environment` added
    hashes: Mapping[str, str]  # part of the identity -> its hash, 16 hexadecimal digits
