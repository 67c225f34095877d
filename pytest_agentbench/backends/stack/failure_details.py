"""What is wrong with a service that died or is not ready, in sentences, and what is known of the ends of engines' logs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.machine.ports import holder
from pytest_agentbench.backends.stack import docker_engine
from pytest_agentbench.backends.stack.instances import Instance, ServiceUnit
from pytest_agentbench.backends.stack.ownership import is_marked
from pytest_agentbench.backends.stack.spec import HttpCheck
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.process import kill_hint, listener
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.records import Endpoint

#: Pattern -> a sentence with the fix, in which {1} is what the pattern's first group found. The first one that is found anywhere counts,
#: so that what is special stands before what is general.
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
            "the weights leave no room for a KV cache: raise --gpu-memory-utilization (SGLang: --mem-fraction-static), "
            "or give the service more GPUs and a higher --tensor-parallel-size"
        ),
    ),
    (
        r"Free memory on device.*less than desired GPU memory utilization",
        "something else has memory of this GPU: `nvidia-smi` names it; end it, lease another GPU, or lower --gpu-memory-utilization",
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
            "to the command, or say `ready: {tools: none}` for a stack without tools"
        ),
    ),
    (
        r"invalid tool call parser|[Tt]ool parser '?[\w-]+'? (?:not found|is not)|[Rr]easoning parser '[\w-]+' not found",
        "this engine does not know the parser by that name: take one that the log lists; vLLM, SGLang and Dynamo name them differently",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE|Errno 98",
        "its port is taken: `ss -ltnp` says by whom; end that, or leave `port` out of the YAML to get a free one",
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
            "Dynamo cannot reach etcd: start it as a service before (`after: [etcd]`) and give ETCD_ENDPOINTS, "
            "or do without it: DYN_DISCOVERY_BACKEND=file"
        ),
    ),
    (
        (
            r"is not a local folder and is not a valid model identifier|Incorrect path_or_model_id|Repo id must be in the form"
            r"|does not appear to have a file named config\.json|Can't load the configuration of|couldn't connect to 'https://huggingface\.co'"
            r"|LocalEntryNotFoundError|outgoing traffic has been disabled"
        ),
        (
            "the weights are not where the engine looks: give the folder's absolute path, or fetch them first with "
            "`agentbench weights get MODEL` (HF_HUB_OFFLINE=1 forbids it to the engine; a container needs the cache mounted)"
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
        "GPUs behind an NVSwitch need the fabric manager of the driver's very version: `systemctl start nvidia-fabricmanager`",
    ),
    (
        r"shared memory segment /dev/shm|[Bb]us error|insufficient shared memory|unable to (?:mmap|open shared memory)|ncclShmOpen",
        "there is too little shared memory: give the container `shm_size: 16g`, or enlarge /dev/shm",
    ),
    (
        r"NCCL error|DistBackendError|ncclSystemError|ncclUnhandledCudaError",
        (
            "the GPUs cannot talk to each other: NCCL_DEBUG=INFO in `env` says why; containers mostly lack `shm_size: 16g`, "
            "some machines need NCCL_P2P_DISABLE=1"
        ),
    ),
    (
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia",
        docker_engine.TOOLKIT,
    ),
    (
        r"No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|no CUDA-capable device|CUDA_ERROR_NO_DEVICE",
        "the engine sees no GPU: say `gpus: 1` for the service, and look whether `nvidia-smi` shows one here",
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
        "the disk is full: `df -h` says which one; weights and caches can move with HF_HOME, VLLM_CACHE_ROOT and TMPDIR",
    ),
    (
        r"No module named '?([\w.]+)'?",
        "the interpreter has no module {1}: point `python` of the service to an environment where it is installed",
    ),
    (
        r"(?<!\S)(\S+): command not found|exec: \"?([^\s\":]+)\"?: executable file not found|No such file or directory: '([^'/]+)'",
        "the command {1} is not on the PATH: install it, or point `python` of the service to the environment that has it",
    ),
)


def hint(lines: Sequence[str]) -> str | None:
    """A sentence with the fix for a failure whose cause is known."""
    text = "\n".join(lines)
    for pattern, sentence in HINTS:
        if found := re.search(pattern, text):
            return sentence.replace("{1}", next(filter(None, found.groups()), ""))
    return None


FULL = 1 << 20  # a disk with fewer bytes free than this is full


def log_of(instance: Instance, code: int | None = None) -> str:
    """The end of its log, what that and its exit code hint at, and whether the log is whole."""
    lines = tail(instance.log)
    known = "".join(f"\nhint: {each}" for each in (hint(lines), kill_hint(code)) if each)
    return f"{known}{_full(instance.log.parent)}\nthe end of {instance.log}:\n{indented(lines)}"


def port_conflict(instance: Instance, home: Path) -> str:
    """Who else has one of its ports; the processes of the stack itself are marked with `home`."""
    for port in instance.ports.values() if instance.spec.image is None else ():
        if (pid := listener(port)) and not is_marked(pid, str(home)):
            return f"\nits port {port} is taken by {holder(port)}"
    return ""


def readiness_problem(instance: Instance, check: HttpCheck | None) -> str:
    """Why it is not ready yet; nothing when it is. Without a check its image's HEALTHCHECK counts, if there is one."""
    if check is None:
        return _ails(instance.running)
    url = instance.url_of(check.port, check.http)
    try:
        answer = Api(Endpoint(url, "")).get("", timeout=5)
    except BackendError as error:
        return str(error)
    if answer.status != 200:
        return f"GET {url} answered {answer}"
    return "" if re.search(check.says, answer.text) else f"GET {url} does not say {check.says!r}, but {beginning(answer.text, 200)!r}"


def _ails(running: ServiceUnit | None) -> str:
    """What a container's own HEALTHCHECK says against it; nothing of one without, and of a process."""
    health = running.health() if running else None
    return "" if health in (None, "healthy") else f"its HEALTHCHECK says that it is {health}"


def _full(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    return f"\nthe disk of {folder} is full: {free} bytes are free" if free < FULL else ""
