"""The surroundings of services: own temporary files, shared caches, and no usage reports."""

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
    """Returns the environment of the service that answers at the URL."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/environ", timeout=10) as answer:
        found: dict[str, str] = json.load(answer)
    return found


def test_temporary_files_go_with_the_stack(boot: Boot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TMPDIR is in the folder of the boot. Caches for the next boot keep their folders, even if HOME is set."""
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


def test_usage_reports_are_off(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage reports are off unless the user or the YAML enables them. The user's own cache is kept."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("HF_HOME", "/data/hub")
    held = boot(spec(services={"engine": service(env={"DO_NOT_TRACK": 0})}))
    found = environment(held.ready().url)

    assert {**NO_REPORTS, "RAY_USAGE_STATS_ENABLED": "1", "DO_NOT_TRACK": "0"} == {name: found[name] for name in NO_REPORTS}
    assert "/data/hub" == found["HF_HOME"]


def test_usage_reports_are_off_in_containers(tmp_path: Path) -> None:
    """Usage reports are off in containers, too. Other variables come from the image."""
    services: Any = {"engine": {"image": "x", "env": {"VLLM_NO_USAGE_STATS": 0}}}
    stack = StackSpec(name="boxed", services=services)
    instances = instances_of(stack, tmp_path, lambda: 1)
    container: Any = Factory(stack, tmp_path, instances).make(instances[0])

    assert {**NO_REPORTS, "VLLM_NO_USAGE_STATS": "0"} == container._env


def test_gpus_are_counted_before_an_image_is_pulled(boot: Boot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with too few GPUs fails at once, before an image is pulled, which may take half an hour."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    services: Any = {"engine": {"image": "registry.invalid/large:1", "gpus": 2}}

    with pytest.raises(MissingError, match=r"^2 GPUs needed; visible here: 0$"):
        boot(spec(services=services)).ready()
