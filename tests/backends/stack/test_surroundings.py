"""What every service of a stack finds around it: its own place for temporary files, shared caches, and nobody who is told of its use."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack.instances import Factory, instances_of
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.surroundings import NO_REPORTS
from pytest_agentbench.errors import MissingError
from tests.backends.conftest import Boot, service, spec

pytestmark = pytest.mark.timeout(60)


def environment(url: str) -> dict[str, str]:
    """That of the service that answers there."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/environ", timeout=10) as answer:
        found: dict[str, str] = json.load(answer)
    return found


def test_temporary_files_go_with_the_stack(boot: Boot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TMPDIR is in the folder of the boot; caches that the next boot needs are where they are without a stack, also behind another HOME."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HOME", raising=False)
    held = boot(spec(services={"engine": service(env={"HOME": "{run_dir}"})}))
    found = environment(held.ready().url)
    there = Path(found["TMPDIR"]).is_dir()
    held.stop()

    assert str(held.home / "run" / "tmp") == found["TMPDIR"]
    assert (True, False) == (there, held.home.exists())
    assert (str(held.home / "run"), str(tmp_path / "cache" / "huggingface")) == (found["HOME"], found["HF_HOME"])
    assert found["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{tempfile.gettempdir()}/torchinductor_")


def test_nobody_is_told_of_its_use(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of use are off, unless the user or the YAML wants one; the user's own cache stays the user's."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("HF_HOME", "/data/hub")
    held = boot(spec(services={"engine": service(env={"DO_NOT_TRACK": 0})}))
    found = environment(held.ready().url)

    assert {**NO_REPORTS, "RAY_USAGE_STATS_ENABLED": "1", "DO_NOT_TRACK": "0"} == {name: found[name] for name in NO_REPORTS}
    assert "/data/hub" == found["HF_HOME"]


def test_containers_are_told_the_same(tmp_path: Path) -> None:
    """Reports of use are off in containers as well; what else is there is their image's."""
    services: Any = {"engine": {"image": "x", "env": {"VLLM_NO_USAGE_STATS": 0}}}
    stack = StackSpec(name="boxed", services=services)
    instances = instances_of(stack, tmp_path, lambda: 1)
    container: Any = Factory(stack, tmp_path, instances).make(instances[0])

    assert {**NO_REPORTS, "VLLM_NO_USAGE_STATS": "0"} == container._env


def test_gpus_are_counted_before_an_image_is_pulled(boot: Boot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with too few GPUs is told so at once: nobody asks Docker for an image, which may take half an hour."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    services: Any = {"engine": {"image": "registry.invalid/large:1", "gpus": 2}}

    with pytest.raises(MissingError, match=r"^2 GPUs wanted; visible here: 0$"):
        boot(spec(services=services)).ready()
