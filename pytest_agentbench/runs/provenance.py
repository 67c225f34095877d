"""What can explain the numbers of a run: code, backend, environment, and the models that its calls asked for and were answered by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class ModelUse:
    """Calls that asked for one model and were answered by one."""

    asked: str  # the model that calls asked for
    answered: str | None  # the one that their answers name; null where they name none, or there was no answer
    calls: int


def models_of(requested: Iterable[str], answered: Iterable[str]) -> tuple[ModelUse, ...]:
    """Returns how often each model was asked for and answered, by name; of each call the model that was asked for, and the answer's."""
    counts = Counter(zip(requested, answered, strict=True))
    return tuple(ModelUse(model, by or None, count) for (model, by), count in sorted(counts.items()) if model)


def model_names(models: Sequence[ModelUse]) -> str | None:
    """`a, b (answered by c)`: every model that was asked for, and where another one answered which; None of no call.

    Calls that nobody answered do not say who would have.
    """
    answers: dict[str, set[str]] = {}
    for each in models:
        answers.setdefault(each.asked, set()).update([each.answered] if each.answered else [])
    return ", ".join(_name(model, by) for model, by in answers.items()) or None


def _name(model: str, by: set[str]) -> str:
    return model if by <= {model} else f"{model} (answered by {', '.join(sorted(by))})"


def unlisted_models(models: Json, listed: Sequence[str]) -> list[str]:
    """A sentence for each model that suites ask for (suite under a variant -> model) and that the backend does not list."""
    if not listed:
        return []
    return [
        f"{group} asks for the model {model!r}, which the backend does not list ({', '.join(listed)}); its calls ask for it all the same"
        for group, model in models.items()
        if model not in listed
    ]
