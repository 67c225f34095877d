"""The error codes of CUDA that a machine's set-up causes, with their meaning and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CudaError(NamedTuple):
    """An error code of CUDA: its name, what it means for this machine, and what to do about it."""

    name: str
    meaning: str
    remedy: str


#: Code -> error. The driver (libcuda) and the runtime (libcudart) use the same numbers for these.
CUDA_ERRORS: Mapping[int, CudaError] = {
    2: CudaError(
        "out of memory",
        "the GPU has no memory left for a context",
        "`nvidia-smi` shows the processes that use it; end them, or use another GPU",
    ),
    34: CudaError(
        "stub library",
        "the libcuda that was loaded is the stub of a CUDA toolkit, not that of a driver",
        "remove the toolkit's folder `stubs` from LD_LIBRARY_PATH, or install the NVIDIA driver",
    ),
    35: CudaError(
        "insufficient driver",
        "the driver is older than the CUDA runtime of this environment",
        "update the driver, or install packages for the CUDA version that `nvidia-smi` shows",
    ),
    46: CudaError(
        "devices unavailable",
        "the GPU is in exclusive mode and in use, or it is in MIG mode and has no parts",
        "`nvidia-smi -q -d COMPUTE` shows the mode; `sudo nvidia-smi -c 0` ends exclusive mode; `nvidia-smi mig -lgi` lists the parts",
    ),
    100: CudaError(
        "no device",
        "the driver sees no GPU",
        "check `nvidia-smi -L`, CUDA_VISIBLE_DEVICES and the device files /dev/nvidia*; a container needs `docker run --gpus all`",
    ),
    101: CudaError(
        "invalid device",
        "the GPU that was requested does not exist",
        "check CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists the GPUs and their MIG parts",
    ),
    214: CudaError(
        "ECC uncorrectable",
        "the memory of the GPU has an error that cannot be corrected",
        "`dmesg | grep -i xid` shows it; restart the machine, and replace the GPU if the error comes back",
    ),
    304: CudaError(
        "operating system",
        "a call of the driver to the operating system failed",
        "check that this user may open /dev/nvidia* and that /dev/nvidia-uvm exists; `sudo nvidia-modprobe -u -c=0` creates it",
    ),
    802: CudaError(
        "system not yet initialized",
        "GPUs behind an NVSwitch cannot compute before the fabric manager has connected them",
        "GPUs behind an NVSwitch need the fabric manager of the driver's very version: `systemctl start nvidia-fabricmanager`",
    ),
    803: CudaError(
        "system driver mismatch",
        "the loaded libcuda and the kernel module of the driver have different versions",
        "restart the machine (or the container) after an update of the driver, and remove other copies of libcuda from LD_LIBRARY_PATH",
    ),
    804: CudaError(
        "forward compatibility not supported",
        "a libcuda for forward compatibility (package cuda-compat) was loaded, and this GPU does not support it",
        "update the driver, or remove the folder `compat` of CUDA from LD_LIBRARY_PATH",
    ),
    805: CudaError(
        "MPS connection failed",
        "the driver cannot reach the MPS server",
        "start `nvidia-cuda-mps-control -d`, or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    999: CudaError(
        "unknown",
        "the driver failed without a reason, often because its module nvidia_uvm is in a bad state",
        "`dmesg | grep -i nvrm` may show the reason; `sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm`, or restart the machine",
    ),
}

UNLISTED = CudaError("unlisted", "the driver refused the call", "`nvidia-smi` and `dmesg | grep -i nvrm` may show the reason")
