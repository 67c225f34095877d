"""The commands of all stacks, held against the command-line parsers of the engines that they start. This needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import environments
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from tests.real.engine_parsers import NEEDS, installed, parse, pins, requirements
from tests.stack_commands import ROOT, commands_of

FILES = [*sorted((ROOT / "backends").glob("*.yaml")), *sorted((ROOT / "tests" / "gpu").glob("*.yaml"))]

#: Stack -> reason why the parser of its engine is not here.
NOT_HERE = {"vllm-continuum": "its vLLM is built from source, which takes an hour and CUDA"}


def commands(home: Path) -> dict[str, dict[str, list[str]]]:
    """Returns program -> (stack and service -> words after the program), for all services of all stacks that start a known program.

    Services in environments without CUDA are left out, because other tests boot them, and some have another version of the program.
    """
    found: dict[str, dict[str, list[str]]] = {program: {} for program in NEEDS}
    for file in FILES:
        spec = load_backend(str(file), ROOT)
        if not isinstance(spec, StackSpec) or file.stem in NOT_HERE:
            continue
        for name, words in commands_of(spec, home).items():
            program, options = _program(words)
            if program in found and _has_version(program, spec, name):
                found[program][f"{file.stem}: {name}"] = options
    return found


def _has_version(program: str, spec: StackSpec, name: str) -> bool:
    """Returns whether the program of an instance is an image, or in an environment of the program's parser, or in one with CUDA."""
    service = spec.services[name if name in spec.services else name.rpartition("-")[0]]
    environment = None if service.image else service.python or spec.python
    return environment is None or environment in NEEDS[program] or environments()[environment].driver > 0


def _program(words: list[str]) -> tuple[str, list[str]]:
    """Returns the program of a command, and the words after it. `vllm serve` may follow a program that starts it, and `--`."""
    words = words[words.index("--") + 1 :] if "--" in words else words
    if words[:2] == ["vllm", "serve"]:
        return "vllm", words[2:]
    return (words[2], words[3:]) if words[1:2] == ["-m"] else ("", words)


@pytest.mark.parametrize("program", NEEDS)
def test_commands_are_valid(program: str, tmp_path: Path) -> None:
    """The parser of a program accepts all commands of the stacks that start it, and refuses an option that it does not have."""
    wanted = commands(tmp_path)[program]
    wrong = {"wrong": [*next(iter(wanted.values())), "--no-such-option=1"]}
    errors = parse(program, {**wanted, **wrong})

    assert errors.pop("wrong")
    assert {} == {name: error for name, error in errors.items() if error}


def test_engines_with_gpus_are_all_checked(tmp_path: Path) -> None:
    """Every service with GPUs starts a program whose parser is checked, or is named as not checked."""
    checked = {name for each in commands(tmp_path).values() for name in each}
    with_gpus = {
        f"{file.stem}: {name}"
        for file in FILES
        if file.stem not in NOT_HERE and isinstance(spec := load_backend(str(file), ROOT), StackSpec)
        for name, service in spec.services.items()
        if service.gpus and service.replicas == 1
    }

    assert set() == with_gpus - checked
    assert {"dynamo: worker-0", "llama70b-tp4: worker", "sglang-disagg: decode", "vllm-ray: engine"} <= checked


@pytest.mark.parametrize(("environment", "engine"), [("dynamo-vllm", "vllm"), ("dynamo-sglang", "sglang")])
def test_engines_of_dynamo_have_our_pins(environment: str, engine: str) -> None:
    """NVIDIA Dynamo requires the version of the engine that the engine's own environment has, so one parser is right for both."""
    found = requirements(installed(environment, f"dynamo.{engine}"), "ai-dynamo")

    assert [pins(engine)[engine]] == [each.partition("==")[2].partition(";")[0].strip() for each in found if re.match(rf"{engine}\b", each)]
