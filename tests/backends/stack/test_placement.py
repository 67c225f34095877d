"""Services on other machines: the clock of a boot, and mistakes in their keys, which are found when the YAML is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.placement import BootClock
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import ConfigError

ON: dict[str, Any] = {"slurm": {"hosts": 2, "gpus": 8}}
LOCAL = {"run": ["router", "{port}"]}


def placed(**keys: Any) -> dict[str, Any]:
    return {"run": ["serve", "--port", "{port}"], "on": ON, "port": 8000, **keys}


def fault(tmp_path: Path, **services: Any) -> str:
    """Returns the error of a stack with these services."""
    (tmp_path / "backends").mkdir(exist_ok=True)
    (file := tmp_path / "backends" / "mine.yaml").write_text(json.dumps({"services": services}))
    with pytest.raises(ConfigError) as caught:
        load_backend("mine", tmp_path)
    return str(caught.value).removeprefix(f"{file}: ")


def test_the_clock_of_a_boot() -> None:
    """The clock stands still while at least one service waits, also if the waits of two overlap."""
    time = [100.0]
    clock = BootClock(lambda: time[0])
    first, second = clock.stopped(), clock.stopped()
    first.__enter__()
    time[0] += 5
    second.__enter__()
    time[0] += 5
    first.__exit__(None, None, None)
    time[0] += 5

    assert (15, 100) == (clock.waited(), clock.now())
    second.__exit__(None, None, None)
    time[0] += 7
    assert (15, 107) == (clock.waited(), clock.now())
    with clock.stopped():
        time[0] += 2
    assert (17, 107) == (clock.waited(), clock.now())


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        (
            {"port": 0, "ready": {"http": "/health"}},
            "it needs a fixed `port`, because of `ready`: a free port of this machine may be",
        ),
        ({"port": 0}, "it needs a fixed `port`, because of {port}: "),
        ({"port": 0, "run": ["serve"]}, "it needs a fixed `port`, because of `endpoint`: "),
        ({"ports": ["system"]}, "a free port of this machine may be taken on other hosts; give `ports` as numbers"),
        ({"image": "vllm"}, "has `on` and `image`; hosts of Slurm run a command, so remove one"),
        ({"gpus": 8}, "`gpus` leases GPUs of this machine, and the service runs elsewhere; use `on: {slurm: {gpus: N}}`"),
        (
            {"run": ["serve", "{port}", "{router.url}"]},
            "{router.url} is an address of this machine's loopback interface, which other",
        ),
        ({"run": ["serve", "{port}", "{gpu_list}"]}, "{gpu_list} is unknown; known: "),
        ({"on": None, "kubernetes": {"manifest": "x.yaml"}, "port": 0}, "has `kubernetes` and `run`; the manifest says what runs"),
        (
            {"on": None, "kubernetes": {"manifest": "x.yaml"}, "run": [], "gpus": 1},
            "`gpus` leases GPUs of this machine, and the service",
        ),
        ({"on": None, "kubernetes": {"manifest": "x.yaml"}, "run": []}, "`port` and `ports` have no effect on a manifest"),
        ({"on": None, "kubernetes": {"manifest": "x.yaml"}, "run": [], "port": 0}, "`kubernetes` needs `url`, because of `endpoint`"),
    ],
)
def test_mistakes(tmp_path: Path, keys: dict[str, Any], mistake: str) -> None:
    """Keys that do not fit a service on other machines are refused with what would work."""
    assert fault(tmp_path, router=LOCAL, engine=placed(**keys)).startswith(f"services.engine: {mistake}")


def test_templates_of_hosts(tmp_path: Path) -> None:
    """{leader}, {rank} and {hosts} are known on hosts of Slurm only."""
    hosts = ["{leader}", "{rank}", "{hosts}", "{port}", "{gpus}"]

    assert fault(tmp_path, engine={"run": hosts}).startswith("services.engine: {leader} is unknown; known: ")
    (tmp_path / "backends" / "mine.yaml").write_text(json.dumps({"services": {"engine": placed(run=hosts)}}))
    load_backend("mine", tmp_path)


def test_the_key_on(tmp_path: Path) -> None:
    """The key `on` works without quotes, although YAML reads it as true. An option changes it, too."""
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "mine.yaml").write_text("services: {engine: {run: [serve], on: {slurm: {hosts: 2, time: 4h}}, port: 8000}}")
    spec = load_backend("mine", tmp_path, [("services.engine.on.slurm.hosts", 4)])

    assert isinstance(spec, StackSpec)
    assert (placement := spec.services["engine"].on) is not None
    assert ["--nodes=4", "--ntasks-per-node=1", "--time=240"] == [*placement.slurm.sbatch_options()]
    assert (0, []) == spec.gpus
