"""What can be tested of `make test-gpu` without a GPU: the commands that it would run, and the reasons why it skips tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gpu.requirements import DYNAMO, LLAMA, VLLM, GpuStack, lacking, skip_unless_possible
from tests.stack_commands import ROOT, commands_of, stack

STACKS = [VLLM, DYNAMO, *LLAMA]
DUMMY = "--load-format=dummy"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without GPUs, environments, weights and Docker, on which somebody runs `make test-gpu`."""
    for name in ("AGENTBENCH_GPUS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"CUDA_VISIBLE_DEVICES": "", "AGENTBENCH_ENVS": str(tmp_path), "HOME": str(tmp_path), "GPU_TESTS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")


def options(backend: str, service: str) -> set[str]:
    """Returns the options of a service, without those that name a model, a folder or an interpreter. Ports are all the same."""
    words = commands_of(stack(backend), Path("/home"))[service]
    kept = [word for word in words if word.startswith("-") and not word.startswith(("-m", "--model="))]
    return {re.sub(r"\b300\d\d\b", "PORT", re.sub(r"=/.*/", "=", word)) for word in kept}


def names(words: set[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def test_random_weights_are_all_that_differs() -> None:
    """The stacks with random weights have the options of `vllm` and `dynamo`, with another name, a shorter context and no weights."""
    vllm = options(VLLM.backend, "engine") ^ options("vllm", "engine")
    dynamo = options(DYNAMO.backend, "worker") ^ options("dynamo", "worker-0")

    assert {DUMMY} == {word for word in vllm if "dummy" in word} == {word for word in dynamo if "dummy" in word}
    assert {"--load-format", "--max-model-len", "--served-model-name"} == names(vllm) == names(dynamo)
    assert set() == options(DYNAMO.backend, "frontend") ^ options("dynamo", "frontend")


def test_shapes_of_llama_have_the_same_workers() -> None:
    """Llama 3.3 70B on four GPUs is one worker of `llama70b`, also without containers."""
    containers, processes = LLAMA

    assert options("llama70b", "worker-0") == options(containers.backend, "worker") == options(processes.backend, "worker")
    assert [4, 4] == [stack(each.backend).gpus[0] for each in LLAMA]
    assert [{"aggregated": 1}] * 2 == [stack(each.backend).ready.workers for each in LLAMA]


def test_environments_are_created() -> None:
    """`make test-gpu` creates the environments of the stacks that it boots, and passes the variable that tests wait for."""
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-gpu:")[2].partition("\n\n")[0]
    created = re.findall(r"env create (\S+)", recipe)

    assert {each for found in STACKS if (each := stack(found.backend).python)} == {*created}
    assert "GPU_TESTS=1 $(BIN)/pytest tests/gpu -v -rs" in recipe


#: Stack -> what it needs, in the order in which `agentbench doctor` checks it.
NEEDED = {
    VLLM: ["the environment 'vllm' does not exist", "1 GPU needed; visible here: none"],
    DYNAMO: ["the environment 'dynamo-vllm' does not exist", "1 GPU needed; visible here: none"],
    LLAMA[0]: ["4 GPUs needed; visible here: none", "no Docker Engine answers", "Llama-3.3-70B-Instruct is not in"],
    LLAMA[1]: ["the environment 'dynamo-vllm' does not exist", "4 GPUs needed", "Llama-3.3-70B-Instruct is not in"],
}


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("wanted", STACKS, ids=lambda stack: Path(stack.backend).stem)
def test_a_skip_names_everything_that_is_missing(wanted: GpuStack) -> None:
    """The reason of a skip names the stack and all things that the machine lacks for it, not only the first."""
    with pytest.raises(pytest.skip.Exception) as skipped:
        skip_unless_possible(wanted)
    reason = str(skipped.value)
    places = [reason.find(each) for each in (f"NOT TESTED on a GPU: {wanted.backend}: ", *NEEDED[wanted])]

    assert -1 not in places
    assert sorted(places) == places


@pytest.mark.usefixtures("bare")
def test_a_skip_names_each_way_to_run_a_model() -> None:
    """If a model can run in containers or as processes, the reason names what is missing for either."""
    with pytest.raises(pytest.skip.Exception, match=r"llama70b-tp4: .*Docker.* \| .*llama70b-tp4-processes.yaml: .*dynamo-vllm"):
        skip_unless_possible(*LLAMA)


@pytest.mark.usefixtures("bare")
def test_gpus_whose_memory_is_unknown_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML the memory of GPUs is unknown, so that a test cannot check that it is free afterwards."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "0,1,2,3")

    assert "GPU memory: NVML does not report it; pip install 'pytest-agentbench[gpu]'" in lacking(VLLM)
    assert not any("GPUs needed" in each for each in lacking(LLAMA[1]))


def test_without_make_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `make test-gpu` uses GPUs; a run of all tests on a machine with GPUs does not."""
    monkeypatch.delenv("GPU_TESTS", raising=False)

    with pytest.raises(pytest.skip.Exception, match="NOT TESTED on a GPU: make test-gpu"):
        skip_unless_possible(VLLM)
