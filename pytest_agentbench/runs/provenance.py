"""Records of what may explain the numbers of a run: code, backend, environment, and the requested and answering models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_agentbench.records import Json


@dataclass(frozen=True)
class Git:
    """The state of a git repository."""

    commit: str  # hash of the commit
    dirty: bool  # whether tracked files have uncommitted changes
    diff: str | None  # hash of the uncommitted changes in tracked files; null if there are none or they cannot be read


@dataclass(frozen=True)
class BackendIdentity:
    """Everything that influences the answers of a backend."""

    hash: str  # hash of `spec`, as in `content.backend` of rollouts
    spec: Json  # parts of the backend YAML that influence its answers, so without names and notes
    # service of a stack -> `packages` (versions of engines and their numerical libraries), `image` and `digest`, each null if unknown;
    # null for other backends
    services: Json | None = None
    # environment variables that configure the engines of a stack (`VLLM_*`, `SGLANG_*`, `DYN_*`, `NCCL_*`, `CUDA_*`, `HF_*`, `TORCH*`
    # and others), without the values of those with secret-looking names; null for other backends
    environment: Json | None = None
    files: Json | None = None  # file that the YAML of a stack names with `{here}` -> its hash; null for other backends
    server: Json | None = None  # `version` (as in vLLM) and `owned_by` (of `/v1/models`) that a server reports; null if it reports neither


@dataclass(frozen=True)
class ModelIdentity:
    """The weights of the model."""

    name: str | None  # name of the model, as `backend.served_model`
    revision: str | None  # Hugging Face commit of the weights in this machine's cache; null if unknown
    files: str | None  # hash of a model folder: names, sizes, and the first and last MiB of each file; null if the model is not a folder


@dataclass(frozen=True)
class Hardware:
    """The GPUs of the backend."""

    gpus: tuple[str | None, ...] | None  # names of the GPUs that the stack leased; null if the backend runs elsewhere
    driver: str | None  # version of the GPU driver; null if unknown


@dataclass(frozen=True)
class HostIdentity:
    """The machine on which the session ran."""

    cpus: int | None  # number of CPU cores; null if unknown
    cpu: str | None  # model name of the CPU; null if unknown
    machine: str  # architecture, such as `x86_64`
    kernel: str  # version of the kernel
    python: str  # version of Python


@dataclass(frozen=True)
class SuiteOptions:
    """Options of the rollouts of a suite."""

    trials: int | str  # trials per scenario, or `auto:5` if rounds were added until the verdict stood
    timeout: float  # time limit of a rollout, seconds
    isolation: str  # isolation of rollouts, as in suite.yaml


@dataclass(frozen=True)
class MeasuringOptions:
    """The options that change what is measured."""

    concurrency: int | None  # maximum number of rollouts in flight; null if unknown
    limit: int | None  # maximum number of scenarios per suite; null if there is none
    variants: tuple[str, ...]  # names of the variants
    retries: int  # maximum number of retries of a rollout
    cache: str  # prefix cache when measuring begins: `cold`, `primed` or `carry`
    taps: int  # number of tap processes
    inline: bool  # whether rollouts ran in the process of their tests
    budgets: Mapping[str, float | None]  # time limits in seconds, as in `settings.budgets`
    warm: bool | None  # whether a stack was kept from an earlier session, so its caches were warm; null for other backends
    suites: Mapping[str, SuiteOptions]  # suite, or `suite-variant`, -> options of its rollouts


@dataclass(frozen=True)
class RunIdentity:
    """The [identity of a run](compare.md#the-identity-of-a-run): everything that may influence its numbers. Unknown values are null."""

    code: Git | None  # git state of pytest's rootdir; null if it is not in a git repository
    packages: Mapping[str, str]  # package -> version
    backend: BackendIdentity  # configuration of the backend
    model: ModelIdentity  # weights of the model
    hardware: Hardware  # GPUs of the backend
    host: HostIdentity  # machine of the session
    data: Mapping[str, Json]  # suite, or `suite-variant`, -> fields of `suites.*.dataset` that identify the data set
    prompts: Mapping[str, Mapping[str, str] | None]  # suite, or `suite-variant`, -> option -> hash of prompt; null for own code
    tools: Mapping[str, str]  # suite, or `suite-variant`, -> hash of all tool schemas
    agent: Mapping[str, Json]  # suite, or `suite-variant`, -> settings of the agent, with hashes of the files that they name
    scoring: Mapping[str, Json]  # suite, or `suite-variant`, -> scorers with their options, the judge, and hashes of their files
    options: MeasuringOptions  # options that change what is measured
    more: Json  # values that the hook `pytest_agentbench_update_environment` added
    hashes: Mapping[str, str]  # part of the identity -> its hash, 16 hexadecimal digits


@dataclass(frozen=True)
class ModelUse:
    """The number of calls with the same requested and answering model."""

    asked: str  # model that the calls requested
    answered: str | None  # model that the answers name; null if they name none, or if there was no answer
    calls: int  # number of these calls


def models_of(requested: Iterable[str], answered: Iterable[str]) -> tuple[ModelUse, ...]:
    """Returns the number of calls for each pair of requested and answering model, sorted by name. Takes both names for each call."""
    counts = Counter(zip(requested, answered, strict=True))
    return tuple(ModelUse(model, by or None, count) for (model, by), count in sorted(counts.items()) if model)


def model_names(models: Sequence[ModelUse]) -> str | None:
    """Returns text such as `a, b (answered by c)`: each requested model, with the answering model if it differs. None without calls.

    Calls without an answer do not add an answering model.
    """
    answers: dict[str, set[str]] = {}
    for each in models:
        answers.setdefault(each.asked, set()).update([each.answered] if each.answered else [])
    return ", ".join(_name(model, by) for model, by in answers.items()) or None


def _name(model: str, by: set[str]) -> str:
    return model if by <= {model} else f"{model} (answered by {', '.join(sorted(by))})"


def unlisted_models(models: Json, listed: Sequence[str]) -> list[str]:
    """Returns a sentence for each requested model (suite under a variant -> model) that the backend does not list."""
    if not listed:
        return []
    return [
        f"{group} requests the model {model!r}, which the backend does not list ({', '.join(listed)}); its calls request it anyway"
        for group, model in models.items()
        if model not in listed
    ]
