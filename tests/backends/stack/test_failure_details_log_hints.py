"""Advice for failures of engines: lines from real logs, and the beginning of the advice."""

from __future__ import annotations

import re

import pytest

from pytest_agentbench.backends.stack.failure_details import HINTS, hint

#: Line of a log -> beginning of its advice.
LOGS = {
    "ValueError: To serve at least one request with the model's max seq len (40960), "
    "(4.38 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the "
    "estimated maximum model length is 9344.": ("the KV cache is too small"),
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (14880). "
    "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.": "the KV cache is too small",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.": (
        "the weights leave no memory"
    ),
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": "the weights leave no memory",
    "ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization "
    "(0.95, 45.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.": "another process uses memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": ("the GPU is out of memory"),
    '400 "auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set': "the server does not parse tool calls",
    "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser": "the server does not parse tool calls",
    "KeyError: 'invalid tool call parser: qwen25 (chose from { deepseek_v3,hermes,llama3_json })'": "this engine does not know the parser",
    "KeyError: \"Reasoning parser 'qwen25' not found\"": "this engine does not know the parser",
    "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use": "its port is taken",
    "OSError: [Errno 98] Address already in use": "its port is taken",
    "OSError: You are trying to access a gated repo.": "the model is gated",
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-693b313c-3a36;d80b0023-f1de)": "the model is gated",
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x/y/resolve/main/config.json": (
        "the hub refuses"
    ),
    "WARN dynamo_llm: self_host_metadata is ON but DYN_SYSTEM_PORT is unset": "Dynamo's frontend looks for the served name on the hub",
    "ERROR hub::from_hf(tiny): Model snapshots for 'tiny' not found in cache": "Dynamo's frontend looks for the served name on the hub",
    "ERROR dynamo_runtime::worker: Application shutdown with error: Failed to connect to etcd server with config ClientOptions "
    '{ etcd_url: ["http://localhost:2379"], etcd_connect_options: None, attach_lease: true }': "Dynamo cannot reach etcd",
    "OSError: /models/nope is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'": (
        "the engine does not find the weights"
    ),
    "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/nope'.": (
        "the engine does not find the weights"
    ),
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).": "this build of torch and CUDA",
    "CUDA error: no kernel image is available for execution on the device": "this build of torch and CUDA",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized": "GPUs behind an NVSwitch",
    "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination": (
        "the loaded libcuda and the kernel module"
    ),
    "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-pZafXL (size 7340384)": "there is too little shared memory",
    "Fatal Python error: Bus error": "there is too little shared memory",
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system error": (
        "the GPUs cannot talk"
    ),
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].': "containers get GPUs",
    "RuntimeError: No CUDA GPUs are available": "the engine sees no GPU",
    "RuntimeError: Failed to infer device type": "the engine sees no GPU",
    "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock": "this user may not",
    "DockerException: Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))": (
        "this user may not"
    ),
    "DockerException: Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file'))": (
        "install Docker and start it"
    ),
    "OSError: [Errno 28] No space left on device": "the disk is full",
    "ModuleNotFoundError: No module named 'vllm'": "the interpreter has no module vllm:",
    "/opt/dynamo/bin/python: No module named dynamo.vllm": "the interpreter has no module dynamo.vllm:",
    "bash: line 1: sglang: command not found": "the command sglang is not on the PATH",
    "FileNotFoundError: [Errno 2] No such file or directory: 'vllm'": "the command vllm is not on the PATH",
    'exec: "vllm": executable file not found in $PATH: unknown': "the command vllm is not on the PATH",
}


@pytest.mark.parametrize(("line", "begin"), LOGS.items(), ids=[line[:40] for line in LOGS])
def test_known_failures(line: str, begin: str) -> None:
    """A line of a known failure anywhere in the log leads to its advice."""
    found = hint(["INFO 08-28 07:39:20 starting", line, "RuntimeError: Engine core initialization failed. See root cause above."])

    assert found is not None
    assert begin == found[: len(begin)]


def test_every_hint_is_known_by_a_log() -> None:
    """Each advice is reached by one of the logs, and none is hidden by another."""
    assert {sentence.partition(":")[0] for _, sentence in HINTS} == {
        next(told.partition(":")[0] for pattern, told in HINTS if re.search(pattern, line)) for line in LOGS
    }


def test_other_logs() -> None:
    """An unknown log, or an empty one, has no advice."""
    assert hint([]) is None
    assert (
        hint(["INFO: Application startup complete.", "INFO: 127.0.0.1:1234 - GET /health 200 OK", "Traceback", "ZeroDivisionError"]) is None
    )


def test_the_cause_before_its_consequence() -> None:
    """If several patterns match, the special one counts: a gated hub also answers 401."""
    found = hint(["requests.exceptions.HTTPError: 401 Client Error: Unauthorized", "OSError: You are trying to access a gated repo."])

    assert found is not None
    assert found.startswith("the model is gated")
