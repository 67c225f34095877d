"""A program that makes the smallest CUDA calls, and prints their results as one line of JSON.

It runs with the interpreter of an engine, in its environment or container, so it uses only the standard library, as Python 3.8 has it.
"""

from __future__ import annotations

import ctypes
import glob
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

LINE = "agentbench-cuda: "  # beginning of the line with the results
TIME_LIMIT = 100  # seconds; after them the process ends itself, even if the program that started it is dead

DRIVER = "libcuda.so.1"
#: Where packages have the CUDA runtime, below a folder of sys.path. Arguments of the program are more patterns, of complete paths.
RUNTIMES = ("nvidia/*/lib/libcudart.so.*", "torch/lib/libcudart*.so*")


def main() -> None:
    signal.alarm(TIME_LIMIT)
    sys.stdout.write(f"{LINE}{json.dumps(results())}\n")
    sys.stdout.flush()


def results() -> dict[str, object]:
    """Returns the results: `step` and `code` of the call that failed, empty and 0 if none did, and facts about driver and runtime."""
    facts: dict[str, object] = {"step": "", "code": 0, "error": "", "library": "", "driver": 0, "gpu": "", "runtime": 0, "runtime_file": ""}
    try:
        cuda = ctypes.CDLL(DRIVER)
    except OSError as error:
        return {**facts, "step": "load", "error": str(error)}
    facts["library"] = loaded("libcuda.so")
    facts["step"], facts["code"] = driver_calls(cuda, facts)
    if not facts["step"] and (file := runtime_file()):
        facts["runtime_file"] = file
        facts["step"], facts["code"] = runtime_calls(file, facts)
    return facts


def driver_calls(cuda: ctypes.CDLL, facts: dict[str, object]) -> tuple[str, int]:
    """Creates a context on the first visible GPU. Returns the name and the error code of the call that failed, or an empty name and 0."""
    version, count, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, context = ctypes.create_string_buffer(96), ctypes.c_void_p()
    if not cuda.cuDriverGetVersion(ctypes.byref(version)):
        facts["driver"] = version.value
    calls: tuple[tuple[str, Callable[[], int]], ...] = (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDeviceGetCount", lambda: cuda.cuDeviceGetCount(ctypes.byref(count))),
        ("cuDeviceGet", lambda: cuda.cuDeviceGet(ctypes.byref(device), 0) if count.value else 100),
        ("cuDeviceGetName", lambda: cuda.cuDeviceGetName(name, len(name), device)),
        ("cuDevicePrimaryCtxRetain", lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)),
    )
    for step, call in calls:
        code = call()
        facts["gpu"] = name.value.decode("utf-8", "replace")
        if code:
            return step, code
    return "", 0


def runtime_calls(file: str, facts: dict[str, object]) -> tuple[str, int]:
    """Initialises the CUDA runtime. Returns the name and the error code of the call that failed, or an empty name and 0."""
    version = ctypes.c_int()
    runtime = ctypes.CDLL(file)
    if not runtime.cudaRuntimeGetVersion(ctypes.byref(version)):
        facts["runtime"] = version.value
    code = runtime.cudaFree(None)
    return ("cudaFree", code) if code else ("", 0)


def runtime_file() -> str:
    """Returns the path of the CUDA runtime of this environment or image, or an empty string if it has none."""
    patterns = [f"{glob.escape(folder)}/{each}" for folder in sys.path if folder for each in RUNTIMES]
    files = (file for pattern in [*patterns, *sys.argv[1:]] for file in sorted(glob.glob(pattern), reverse=True))  # noqa: PTH207 - absolute patterns
    return next(files, "")


def loaded(name: str) -> str:
    """Returns the path of a library that this process has loaded, or an empty string if it is unknown."""
    try:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
            return next((line.split(None, 5)[5].strip() for line in maps if f"/{name}" in line), "")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
