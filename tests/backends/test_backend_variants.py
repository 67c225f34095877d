"""Shipped stacks that are a variant of another one: they differ in what their pages say, and in nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import environments
from tests.stack_commands import commands_of, stack

#: Variant, its service, original, its service -> options that only one of the two has.
VARIANTS = {
    ("sglang-disagg", "prefill", "sglang", "engine"): {"mode=prefill", "transfer-backend=nixl", "bootstrap-port=PORT"},
    ("sglang-disagg", "decode", "sglang", "engine"): {"mode=decode", "transfer-backend=nixl"},
    ("dynamo-sglang-disagg", "prefill", "dynamo-sglang", "worker-0"): {"mode=prefill", "transfer-backend=nixl", "bootstrap-port=PORT"},
    ("dynamo-sglang-container", "worker-1", "dynamo-sglang", "worker-1"): set[str](),
    ("llama70b-tp4", "worker", "llama70b", "worker-0"): set[str](),
}

EVENTS = "--kv-events-config"


def options(name: str, service: str) -> set[str]:
    """Returns the options of a service in a command. All ports are the same, and so are interpreters in images and environments."""
    words = commands_of(stack(name), Path("/home"))[service]
    return {re.sub(r"\b300\d\d\b", "PORT", word) for word in words if word not in ("python", "python3")}


@pytest.mark.parametrize(("variant", "own"), VARIANTS.items(), ids=lambda each: "-".join(each[:2]) if isinstance(each, tuple) else "")
def test_variants_differ_in_nothing_else(variant: tuple[str, str, str, str], own: set[str]) -> None:
    """A worker of a variant has the options of the original, and those that make it a variant."""
    name, service, original, its = variant

    assert {f"--disaggregation-{each}" for each in own} == options(name, service) ^ options(original, its)


def test_routers_of_sglang_have_the_same_options() -> None:
    """The router of `sglang-disagg` has the options of `sglang-router`, but for those that name the engines."""
    names = [
        {word.partition("=")[0] for word in options(name, "router") if word.startswith("--")} for name in ("sglang-disagg", "sglang-router")
    ]

    assert {"--pd-disaggregation", "--prefill", "--decode", "--worker-urls"} == names[0] ^ names[1]


def test_decode_workers_of_dynamo_send_no_events() -> None:
    """Dynamo's router counts the cached prompts of workers that read prompts, so only these report their cache."""
    without = {"--disaggregation-mode=prefill", "--disaggregation-bootstrap-port=PORT"}
    differences = options("dynamo-sglang-disagg", "prefill") - options("dynamo-sglang-disagg", "decode")

    assert without | {word for word in differences if word.startswith(EVENTS)} == differences
    assert len(without) + 1 == len(differences)


@pytest.mark.parametrize("name", ["sglang-disagg", "dynamo-sglang-disagg"])
def test_kv_caches_travel_within_this_machine(name: str) -> None:
    """Engines that send each other KV caches reach each other at an address of this machine that other machines cannot reach."""
    spec = stack(name)

    assert "127.0.0.1" == spec.env["SGLANG_HOST_IP"]
    assert (2, []) == spec.gpus


def test_workers_that_are_waited_for() -> None:
    """A stack waits for its own workers, not for those of the stack that it is based on."""
    names = ("dynamo-sglang-disagg", "dynamo-sglang-container", "llama70b-tp4", "llama70b-tp8")

    assert [{"prefill": 1, "decode": 1}, {"aggregated": 2}, {"aggregated": 1}, {"aggregated": 1}] == [
        stack(name).ready.workers for name in names
    ]
    assert [2, 2, 4, 8] == [stack(name).gpus[0] for name in names]


#: Stack with an image -> the environment with the same packages, and what precedes the version in the name of the image.
IMAGES = {
    "dynamo-container": ("dynamo-vllm", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:"),
    "dynamo-sglang-container": ("dynamo-sglang", "nvcr.io/nvidia/ai-dynamo/sglang-runtime:"),
    "llama70b": ("dynamo-vllm", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:"),
    "llama70b-tp4": ("dynamo-vllm", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:"),
    "vllm-container": ("vllm", "vllm/vllm-openai:v"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_have_the_versions_of_the_environments(name: str) -> None:
    """An image and the environment with the same engine have one version, so that options are right for both."""
    environment, beginning = IMAGES[name]
    (pin,) = environments()[environment].pins

    assert stack(name).settings["image"] == f"{beginning}{pin.partition('==')[2]}"
