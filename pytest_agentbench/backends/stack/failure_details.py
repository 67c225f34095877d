"""Details for errors about a service that died or is not ready: the end of its log, advice for known errors in it, port conflicts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.machine.cuda_errors import CUDA_ERRORS
from pytest_agentbench.backends.machine.ports import holder
from pytest_agentbench.backends.stack import docker_engine
from pytest_agentbench.backends.stack.instances import Instance, ServiceUnit
from pytest_agentbench.backends.stack.ownership import is_marked
from pytest_agentbench.backends.stack.placement import PlacedUnit
from pytest_agentbench.backends.stack.spec import HttpCheck
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.process import kill_hint, listener
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.records import Endpoint

#: (pattern, advice). {1} in the advice is the first group of the match. The first pattern that matches anywhere in the log counts, so
#: special patterns come before general ones.
HINTS: Sequence[tuple[str, str]] = (
    (
        r"larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)",
        (
            "the KV cache is too small for one request of the model's full length: lower --max-model-len (the log says what fits), "
            "raise --gpu-memory-utilization, or give the service more GPUs and a higher --tensor-parallel-size"
        ),
    ),
    (
        r"No available memory for the cache blocks|Not enough memory\. Please try to increase --mem-fraction-static",
        (
            "the weights leave no memory for a KV cache: raise --gpu-memory-utilization (SGLang: --mem-fraction-static), "
            "or give the service more GPUs and a higher --tensor-parallel-size"
        ),
    ),
    (
        r"Free memory on device.*less than desired GPU memory utilization",
        "another process uses memory of this GPU: `nvidia-smi` shows it; end it, lease another GPU, or lower --gpu-memory-utilization",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation",
        (
            "the GPU is out of memory: lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, "
            "or give the service more GPUs and a higher --tensor-parallel-size"
        ),
    ),
    (
        r"requires --enable-auto-tool-choice|--enable-auto-tool-choice requires --tool-call-parser",
        (
            "the server does not parse tool calls: add --enable-auto-tool-choice and the model's --tool-call-parser (such as hermes) "
            "to the command, or set `ready: {tools: none}` for a stack without tools"
        ),
    ),
    (
        r"invalid tool call parser|[Tt]ool parser '?[\w-]+'? (?:not found|is not)|[Rr]easoning parser '[\w-]+' not found",
        "this engine does not know the parser by that name: use one that the log lists; vLLM, SGLang and Dynamo name them differently",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE|Errno 98",
        "its port is taken: `ss -ltnp` shows the process; end it, or remove `port` from the YAML to get a free one",
    ),
    (
        r"gated repo|GatedRepoError|Access to model \S+ is restricted",
        "the model is gated: accept its licence on huggingface.co and set HF_TOKEN, named under `secrets` of the service",
    ),
    (
        r"401 Client Error|Repository Not Found for url|RepositoryNotFoundError|Invalid (?:user|credentials)[^\n]{0,100}token",
        (
            "the hub refuses the request: the model's name is wrong, or it is private and HF_TOKEN is missing or wrong "
            "(name it under `secrets` of the service)"
        ),
    ),
    (
        r"DYN_SYSTEM_PORT is unset|hub::from_hf\(|Model snapshots for '[^']*' not found in cache",
        (
            "Dynamo's frontend looks for the served name on the hub: set DYN_SYSTEM_PORT=0 in `env` of every worker and router, "
            "or serve the model under its absolute path"
        ),
    ),
    (
        r"Failed to connect to etcd|dynamo_runtime::transports::etcd|[Uu]nable to connect to etcd",
        (
            "Dynamo cannot reach etcd: start it as a service before this one (`after: [etcd]`) and set ETCD_ENDPOINTS, "
            "or run without it: DYN_DISCOVERY_BACKEND=file"
        ),
    ),
    (
        (
            r"is not a local folder and is not a valid model identifier|Incorrect path_or_model_id|Repo id must be in the form"
            r"|does not appear to have a file named config\.json|Can't load the configuration of|couldn't connect to 'https://huggingface\.co'"
            r"|LocalEntryNotFoundError|outgoing traffic has been disabled"
        ),
        (
            "the engine does not find the weights: use the folder's absolute path, or download them first with "
            "`agentbench weights get MODEL` (with HF_HUB_OFFLINE=1 the engine cannot download; a container needs the cache mounted)"
        ),
    ),
    (
        (
            r"NVIDIA driver on your system is too old|driver version is insufficient for CUDA runtime|no kernel image is available"
            r"|unsatisfied condition: cuda|the provided PTX was compiled with an unsupported toolchain"
        ),
        (
            "this build of torch and CUDA does not fit the driver or the GPU: update the driver, "
            "or install the engine for the CUDA version that `nvidia-smi` shows"
        ),
    ),
    (
        r"[Ee]rror 802|system not yet initialized|cudaErrorSystemNotReady",
        CUDA_ERRORS[802].remedy,
    ),
    (
        r"[Ee]rror 803|unsupported display driver / cuda driver combination|cudaErrorSystemDriverMismatch",
        f"{CUDA_ERRORS[803].meaning}: {CUDA_ERRORS[803].remedy}",
    ),
    (
        r"shared memory segment /dev/shm|[Bb]us error|insufficient shared memory|unable to (?:mmap|open shared memory)|ncclShmOpen",
        "there is too little shared memory: give the container `shm_size: 16g`, or enlarge /dev/shm",
    ),
    (
        r"NCCL error|DistBackendError|ncclSystemError|ncclUnhandledCudaError",
        (
            "the GPUs cannot talk to each other: NCCL_DEBUG=INFO in `env` logs the reason; containers often need `shm_size: 16g`, "
            "some machines need NCCL_P2P_DISABLE=1"
        ),
    ),
    (
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia",
        docker_engine.TOOLKIT,
    ),
    (
        r"No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|no CUDA-capable device|CUDA_ERROR_NO_DEVICE",
        "the engine sees no GPU: set `gpus: 1` for the service, and check that `nvidia-smi` shows one on this machine",
    ),
    (
        (
            r"permission denied while trying to connect to the Docker|docker\.sock.{0,400}[Pp]ermission denied"
            r"|Permission denied.{0,400}docker\.sock"
            r"|Error while fetching server API version.{0,400}PermissionError"
        ),
        docker_engine.ALLOW,
    ),
    (
        (
            r"Error while fetching server API version|Cannot connect to the Docker daemon"
            r"|docker\.sock.{0,400}(?:No such file|[Cc]onnection refused)"
        ),
        docker_engine.START,
    ),
    (
        r"No space left on device|Errno 28|[Dd]isk quota exceeded",
        "the disk is full: `df -h` shows which one; weights and caches can move with HF_HOME, VLLM_CACHE_ROOT and TMPDIR",
    ),
    (
        r"No module named '?([\w.]+)'?",
        "the interpreter has no module {1}: set `python` of the service to an environment that has it",
    ),
    (
        r"(?<!\S)(\S+): command not found|exec: \"?([^\s\":]+)\"?: executable file not found|No such file or directory: '([^'/]+)'",
        "the command {1} is not on the PATH: install it, or set `python` of the service to the environment that has it",
    ),
)


def hint(lines: Sequence[str]) -> str | None:
    """Returns advice for the first known error in the lines of a log, or None."""
    text = "\n".join(lines)
    for pattern, sentence in HINTS:
        if match := re.search(pattern, text):
            return sentence.replace("{1}", next(filter(None, match.groups()), ""))
    return None


MOST_LOGS = 5  # logs of a service on several hosts whose ends are in an error message
FULL = 1 << 20  # bytes; a disk with less free space counts as full


def log_of(instance: Instance, code: int | None = None) -> str:
    """Returns the end of an instance's log for an error message, with advice for known errors, and a line if the disk is full.

    `code` is the exit code, if the instance has ended. If it means SIGKILL, there is advice about that, too.
    """
    unit = instance.running
    if isinstance(unit, PlacedUnit):
        logs, code = unit.logs()[:MOST_LOGS], None  # Kills of other machines are not counted on this one.
    else:
        logs = [instance.log]
    ends = {log: tail(log) for log in logs}
    known = "".join(f"\nhint: {each}" for each in (hint([line for lines in ends.values() for line in lines]), kill_hint(code)) if each)
    texts = "".join(f"\nthe end of {log}:\n{indented(lines)}" for log, lines in ends.items())
    return f"{known}{_full_disk(instance.log.parent)}{texts}"


def port_conflict(instance: Instance, home: Path) -> str:
    """Returns a line if a program that does not belong to the stack uses one of the instance's ports, else an empty string."""
    for port in instance.ports.values() if instance.spec.image is None and not instance.spec.is_placed else ():
        if (pid := listener(port)) and not is_marked(pid, str(home)):
            return f"\nits port {port} is taken by {holder(port)}"
    return ""


def readiness_problem(instance: Instance, check: HttpCheck | None) -> str:
    """Returns why an instance is not ready yet, or an empty string if it is ready.

    Without a check in the YAML, the HEALTHCHECK of the image decides. An instance without either is ready when it runs. If a cluster runs
    it, the cluster has to say that it is ready, too.
    """
    if isinstance(unit := instance.running, PlacedUnit) and (problem := unit.problem()):
        return problem
    if check is None:
        return _health_problem(instance.running)
    url = instance.url_of(check.port, check.http)
    try:
        answer = Api(Endpoint(url, "")).get("", timeout=5)
    except BackendError as error:
        return str(error)
    if answer.status != 200:
        return f"GET {url} answered {answer}"
    if re.search(check.says, answer.text):
        return ""
    return f"the answer to GET {url} does not match {check.says!r}: {beginning(answer.text, 200)!r}"


def _health_problem(running: ServiceUnit | None) -> str:
    """Returns a sentence if a container's HEALTHCHECK has not passed, else an empty string. Processes have no HEALTHCHECK."""
    health = running.health() if running else None
    return "" if health in (None, "healthy") else f"its HEALTHCHECK says that it is {health}"


def _full_disk(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    return f"\nthe disk of {folder} is full: {free} bytes are free" if free < FULL else ""
