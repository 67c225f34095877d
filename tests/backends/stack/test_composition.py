"""Stacks that take keys from other YAMLs: all keys from a base, services from included files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from pytest_agentbench.backends.machine.versions import named_files
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import shipped
from pytest_agentbench.records import Json

ENGINE: Json = {"run": ["serve", "{here}/template.jinja", "{port}"], "gpus": 4, "replicas": 2, "ready": {"http": "/health"}}


def stack(root: Path, name: str = "mine", changes: Sequence[tuple[str, object]] = ()) -> StackSpec:
    spec = load_backend(name, root, changes)
    assert isinstance(spec, StackSpec)
    return spec


def written(root: Path, **files: Json) -> Path:
    """Writes YAMLs to the backends of a project, and returns the project."""
    (root / "backends").mkdir(exist_ok=True)
    for name, keys in files.items():
        (root / "backends" / f"{name}.yaml").write_text(yaml.safe_dump(keys, sort_keys=False))
    return root


def test_mappings_are_merged(tmp_path: Path) -> None:
    """A stack has the keys of its base, except those that it sets itself, at any depth. Lists are replaced. Its name is its own."""
    env = {"A": "{a}", "B": "{b}"}
    base = {
        "model": "m",
        "env": env,
        "settings": {"a": 1, "b": 2},
        "services": {"engine": ENGINE},
        "ready": {"timeout": 9, "workers": {"prefill": 2}},
    }
    mine = {"base": "big", "settings": {"b": 3}, "services": {"engine": {"replicas": 1}, "more": {"run": ["x"]}}, "ready": {"timeout": 5}}
    spec = stack(written(tmp_path, big=base, mine=mine))

    assert ("mine", "m", {"a": 1, "b": 3}) == (spec.name, spec.model, spec.settings)
    assert (4, 1, ENGINE["run"]) == (spec.services["engine"].gpus, spec.services["engine"].replicas, spec.services["engine"].run)
    assert ["engine", "more"] == [*spec.services]
    assert (5, {"prefill": 2}) == (spec.ready.timeout, spec.ready.workers)
    assert ["y"] == stack(written(tmp_path, mine={**mine, "services": {"engine": {"run": ["y"]}}})).services["engine"].run


def test_a_key_without_a_value_is_removed(tmp_path: Path) -> None:
    """A stack can leave out services and keys of its base."""
    base = {"python": "vllm", "services": {"engine": ENGINE, "router": {"run": ["x"]}}}
    mine = {"base": "big", "python": None, "services": {"router": None, "engine": {"ready": None}}}
    spec = stack(written(tmp_path, big=base, mine=mine))

    assert (None, ["engine"], None) == (spec.python, [*spec.services], spec.services["engine"].ready)


def test_a_setting_on_the_command_line_changes_what_comes_from_the_base(tmp_path: Path) -> None:
    """`--agentbench-set` goes before the stack's own keys and before those of the base."""
    root = written(tmp_path, big={"services": {"engine": ENGINE}}, mine={"base": "big"})

    assert 8 == stack(root, changes=[("services.engine.gpus", 8)]).services["engine"].gpus


def test_a_base_may_have_a_base_and_included_files(tmp_path: Path) -> None:
    """Files of a base are found beside it, also from another folder. So run.json has the hashes of files that services use."""
    written(tmp_path, parts={"services": {"router": {"run": ["route"], "cwd": "work"}}})
    written(tmp_path, big={"include": "parts.yaml", "services": {"engine": ENGINE}})
    written(tmp_path, middle={"base": "big", "services": {"engine": {"replicas": 1}}})
    elsewhere = tmp_path / "elsewhere" / "mine.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text("base: ../backends/middle.yaml\nservices: {own: {run: ['{here}/own']}}\n")
    spec = stack(tmp_path, str(elsewhere))

    assert ["router", "engine", "own"] == [*spec.services]
    assert ["serve", "{here}/../backends/template.jinja", "{port}"] == spec.services["engine"].run
    assert "../backends/work" == spec.services["router"].cwd
    assert ["{here}/own"] == spec.services["own"].run
    assert {"../backends/template.jinja", "own"} == named_files(spec).keys()


def test_a_shipped_stack_is_a_base_by_name(tmp_path: Path) -> None:
    """A project's own `dynamo` can be based on the one that comes with agentbench."""
    spec = stack(written(tmp_path, dynamo={"base": "dynamo", "settings": {"router_mode": "random"}}), "dynamo")

    assert ("Qwen/Qwen3-8B", "random", "dynamo-vllm") == (spec.model, spec.settings["router_mode"], spec.python)


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ({"base": "nowhere"}, "base: nowhere is neither a YAML in .*backends nor a stack that comes with agentbench"),
        ({"base": "nowhere.yaml"}, "base: nowhere.yaml is neither"),
        ({"base": "mine.yaml"}, "base: mine.yaml leads back to mine.yaml"),
        ({"base": "other"}, "other.yaml: base: mine leads back to mine.yaml; a file cannot be based on itself"),
        ({"base": "big", "services": {"engine": {"gpu": 1}}}, "gpu"),
    ],
)
def test_mistakes(mine: Json, message: str, tmp_path: Path) -> None:
    """A base that does not exist, or that leads back, is refused with the names of the files. So is an unknown key in the result."""
    root = written(tmp_path, big={"services": {"engine": ENGINE}}, other={"base": "mine"}, mine=mine)

    with pytest.raises(ConfigError, match=message):
        load_backend("mine", root)


def test_included_files_that_come_with_agentbench(tmp_path: Path) -> None:
    """A stack may include a file that comes with agentbench, whose `{here}` is then its folder. A file of the project goes before it.

    The included services come before those of the base, so that the endpoint stays that of the base.
    """
    engine = {"run": ["serve", "{port}"]}
    root = written(tmp_path, big={"services": {"engine": engine}}, mine={"base": "big", "include": "monitoring/prometheus.yaml"})
    ours = stack(root)
    (tmp_path / "backends" / "monitoring").mkdir()
    (tmp_path / "backends" / "monitoring" / "prometheus.yaml").write_text("services: {prometheus: {run: [mine]}}\n")
    own = stack(root)
    script = next(word for word in ours.services["prometheus"].run if word.endswith(".py"))

    assert ["prometheus", "engine"] == [*ours.services]
    assert "engine" == ours.front
    assert Path(script.replace("{here}", ours.here)).samefile(shipped("backends") / "monitoring" / "start_prometheus.py")
    assert ["mine"] == own.services["prometheus"].run


def test_a_missing_included_file(tmp_path: Path) -> None:
    """A missing file is named with the file that includes it."""
    root = written(tmp_path, mine={"include": "parts.yaml"})
    folder = root / "backends"

    with pytest.raises(ConfigError) as mine:
        stack(root)

    assert f"{folder}/mine.yaml: include: parts.yaml is neither a YAML in {folder} nor one that comes with agentbench" == str(mine.value)


@pytest.mark.parametrize("change", [("settings.polcy", "kv"), None])
def test_a_misspelt_setting(tmp_path: Path, change: tuple[str, object] | None) -> None:
    """A setting that no template uses is refused, in a YAML and on the command line: it would change nothing, and arms would be equal."""
    base = {"env": {"P": "{policy}"}, "settings": {"policy": "random"}, "services": {"engine": ENGINE}}
    root = written(tmp_path, big=base, mine={"base": "big", **({} if change else {"settings": {"polcy": "kv"}})})

    with pytest.raises(ConfigError, match=r"settings\.polcy \(did you mean 'policy'\?\): no service has the template \{polcy\}"):
        stack(root, changes=[change] if change else [])
    assert {"policy": "kv"} == stack(root, "big", [("settings.policy", "kv")]).settings


def test_a_setting_of_a_replaced_service(tmp_path: Path) -> None:
    """If a service is replaced, in a YAML or on the command line, the settings of its templates stay and are not refused."""
    base = {"settings": {"depth": 4}, "services": {"engine": {**ENGINE, "env": {"DEPTH": "{depth}"}}}}
    root = written(tmp_path, big=base, mine={"base": "big", "services": {"engine": {"env": None}}})

    assert {"depth": 4} == stack(root).settings
    assert {"depth": 2} == stack(root, "big", [("services.engine", ENGINE), ("settings.depth", 2)]).settings
