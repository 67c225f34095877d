"""The shipped backends: each can be loaded, and created as far as this machine allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.environments import OWN, environments
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec, dependencies, texts
from pytest_agentbench.backends.stack.templates import TEMPLATE, expand

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "backends").glob("*.yaml"), *(ROOT / "tests" / "real" / "stacks").glob("*.yaml")])
SHIPPED = [file for file in FILES if file.parent.name == "backends"]
STACKS = {file.stem: spec for file in FILES if isinstance(spec := load_backend(str(file), ROOT), StackSpec)}

#: Templates that every service knows.
ALWAYS = {"port", "model", "gpus", "gpu_list", "replica", "run_dir", "logs", "here", "home"}

each_stack = pytest.mark.parametrize("name", STACKS)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_says_what_it_needs(file: Path) -> None:
    """A file begins with a comment that describes it, and then its requirements if it has any."""
    header = [line for line in file.read_text().split("\n\n")[0].splitlines() if line.startswith("#")]

    assert header[0].startswith("# ")
    assert any(line.startswith("# Needs: ") for line in header) or "needs no GPU" in " ".join(header)


@each_stack
def test_everything_in_it_is_known(name: str) -> None:
    """Templates are known, no services wait for each other, and environments are known to `agentbench env`."""
    spec = STACKS[name]
    of_services = {f"{other}.{key}" for other in spec.services for key in ("port", "url", "urls")}
    of_services |= {f"{other}.port.{port}" for other, service in spec.services.items() for port in service.ports}
    for service in spec.services.values():
        known = ALWAYS | spec.settings.keys() | of_services | {f"port.{port}" for port in service.ports}
        for text in (*texts(service), *spec.env.values()):
            expand(text, dict.fromkeys(known, "1"), name)  # raises an error for an unknown template

    assert spec.services.keys() == dependencies(spec).keys()
    assert {each for each in (spec.python, *(service.python for service in spec.services.values())) if each} <= {*environments(), OWN}


@each_stack
def test_gpus_are_all_used(name: str) -> None:
    """The command of an engine with GPUs contains their number, so that one setting changes both."""
    for service in STACKS[name].services.values():
        if service.gpus:
            assert any(re.search(r"--(tensor-parallel-size|tp)=\{gpus\}", word) for word in service.run)


@each_stack
def test_settings_are_all_used(name: str) -> None:
    """Every setting is used by a template."""
    spec = STACKS[name]
    used = {found for service in spec.services.values() for text in texts(service) for found in TEMPLATE.findall(text)}

    assert set() == spec.settings.keys() - used


@pytest.mark.parametrize("name", [file.stem for file in SHIPPED if "dynamo.frontend" in file.read_text()])
def test_stacks_of_dynamo(name: str) -> None:
    """Calls carry the session as a label unless another router decides. Data that answers lack are traced, and all servers are local."""
    spec = STACKS[name]
    frontend = spec.services["frontend"]
    environments = [{**spec.env, **service.env} for service in spec.services.values()]
    dynamo = [environment for environment in environments if "DYN_DISCOVERY_BACKEND" in environment]

    assert spec.labels.release or "--router-session-affinity-ttl-secs=3600" in frontend.run
    assert "{run_dir}/requests.jsonl" == spec.labels.trace
    assert frontend.env["DYN_REQUEST_TRACE_FILE_PATH"].endswith("/requests.jsonl")
    assert [("127.0.0.1", "127.0.0.1", "lo")] * len(dynamo) == [
        tuple(environment[f"DYN_{name}_HOST"] for name in ("SYSTEM", "TCP_RPC", "TCP_RESPONSE_STREAM")) for environment in dynamo
    ]
    assert [] == [environment for environment in environments if "DYN_FORWARDPASS_METRIC_PORT" in environment]


@pytest.mark.parametrize("name", [file.stem for file in SHIPPED if "- ThunderAgent\n" in file.read_text()])
def test_stacks_with_thunderagents_router(name: str) -> None:
    """The router starts after its engine, whose capacity it reads once, and is ready when it knows it. Each boot has its own trace."""
    spec = STACKS[name]
    router = spec.services["router"]
    assert router.ready is not None

    assert (["engine"], "router") == (router.after, spec.front)
    assert not re.search(router.ready.says, '{"backends":{"http://x":{"cache_config":{"total_tokens_capacity":0}}}}')
    assert not re.search(router.ready.says, '{"metrics_enabled":true,"backends":{"http://x":{"healthy":true}}}')
    assert re.search(router.ready.says, '{"backends":{"http://x":{"cache_config":{"total_tokens_capacity":32768}}}}')
    assert {"--metrics", "--profile", "--profile-dir={run_dir}/profile", "--backends={engine.urls}"} <= {*router.run}
    assert ("thunderagent", "{run_dir}/profile/step_profiles.csv") == (spec.labels.kind, spec.labels.trace)


#: Method of the paper -> the options of its router and engine that other methods do not have.
METHODS = {
    "vllm-default-router": {"--router=default"},
    "vllm-continuum": {"--router=default", "--scheduling-policy=continuum"},
    "thunderagent-no-decay": {"--router=tr", "--scheduler-interval={scheduler_interval}"},
    "thunderagent": {"--router=tr", "--scheduler-interval={scheduler_interval}", "--use-acting-token-decay"},
}


def test_methods_differ_in_nothing_else() -> None:
    """Model, engine and the path of a call are the same for all methods of the paper, so only the method differs."""
    words = {name: {word for service in STACKS[name].services.values() for word in service.run} for name in METHODS}
    common = set.intersection(*words.values())

    assert METHODS == {name: own - common for name, own in words.items()}
    assert {"nvidia/Nemotron-Orchestrator-8B"} == {STACKS[name].model for name in METHODS}
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-force-include-usage"} <= common
    assert {"vllm-continuum": True} == {name: True for name in METHODS if STACKS[name].labels.job}
    assert {"vllm", "vllm-continuum"} == {str(STACKS[name].services["engine"].python) for name in METHODS}


@pytest.mark.parametrize("name", [*METHODS, "dynamo-thunderagent"])
def test_commands_of_a_method(name: str) -> None:
    """No template is left in a command after expansion."""
    spec = STACKS[name]
    values = {**{key: str(value) for key, value in spec.settings.items()}, "model": spec.model or "", **dict.fromkeys(ALWAYS, "1")}
    values |= {f"{service}.{key}": "http://127.0.0.1:1" for service in spec.services for key in ("url", "urls", "port")}
    values |= {f"port.{port}": "1" for service in spec.services.values() for port in service.ports}
    commands = [expand(word, values, name) for service in spec.services.values() for word in service.run]

    assert [] == [word for word in commands if TEMPLATE.search(word)]
    assert {"--gpu-memory-utilization=0.9", "--max-model-len=32768"} <= {*commands}


def test_files_that_stacks_name_exist() -> None:
    """Files beside the YAMLs (workers and chat templates) exist."""
    named = {
        (spec.here, found)
        for spec in STACKS.values()
        for service in spec.services.values()
        for text in texts(service)
        for found in re.findall(r"\{here\}/([\w./-]+)", text)
    }

    assert 3 <= len(named)
    assert [] == [path for here, path in named if not Path(here, path).exists()]


def test_all_are_on_the_page() -> None:
    """docs/stacks.md lists every shipped backend in its table."""
    table = (ROOT / "docs" / "stacks.md").read_text().partition("| backend |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)

    assert sorted(file.stem for file in SHIPPED) == sorted(listed)


def test_environments_are_on_the_page() -> None:
    """docs/stacks.md lists every environment."""
    text = (ROOT / "docs" / "stacks.md").read_text()

    assert [] == [name for name in environments() if f"`{name}`" not in text]
