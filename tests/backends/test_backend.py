"""The shipped backends: each can be loaded, and created as far as this machine allows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from pytest_agentbench.backends.machine.virtual_environments import OWN, environments
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.instances import submissions
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.stack.spec import ServiceSpec, StackSpec, dependencies, single_texts, texts, words
from pytest_agentbench.backends.stack.templates import TEMPLATE, expand, expand_words
from pytest_agentbench.clusters.manifests import labelled, read_manifests

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "backends").glob("*.yaml"), *(ROOT / "tests" / "real" / "stacks").glob("*.yaml")])
SHIPPED = [file for file in FILES if file.parent.name == "backends"]
STACKS = {file.stem: spec for file in FILES if isinstance(spec := load_backend(str(file), ROOT), StackSpec)}

#: Templates that every service knows.
ALWAYS = {"port", "model", "gpus", "gpu_list", "replica", "run_dir", "logs", "here", "home"}

#: Templates that services on hosts of Slurm know, too.
ON_HOSTS = {"leader", "rank", "hosts"}


def _services(name: str) -> list[ServiceSpec]:
    return [*STACKS[name].services.values()] if name in STACKS else []


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
    of_services |= {
        f"{other}.{key}.{port}" for other, service in spec.services.items() for port in service.ports for key in ("port", "ports")
    }
    for service in spec.services.values():
        known = (
            ALWAYS | spec.settings.keys() | of_services | {f"port.{port}" for port in service.ports} | (ON_HOSTS if service.on else set())
        )
        values = dict.fromkeys(known, "1")
        expand_words(words(service), values, name)  # raises an error for an unknown template
        for text in (*single_texts(service), *spec.env.values()):
            expand(text, values, name)

    assert spec.services.keys() == dependencies(spec).keys()
    assert {each for each in (spec.python, *(service.python for service in spec.services.values())) if each} <= {*environments(), OWN}


@each_stack
def test_gpus_are_all_used(name: str) -> None:
    """The command of an engine with GPUs contains their number, so that one setting changes both."""
    for service in STACKS[name].services.values():
        if service.gpus or (service.on and service.on.slurm.gpus):
            assert any(re.search(r"--(tensor-parallel-size|tp-size)=\{gpus\}", word) for word in service.run)


@each_stack
def test_settings_are_all_used(name: str) -> None:
    """Every setting is used by a template."""
    spec = STACKS[name]
    manifests = [Path(spec.here, service.kubernetes.manifest) for service in spec.services.values() if service.kubernetes]
    every = [*spec.env.values(), *(file.read_text() for file in manifests)]
    every += [text for service in spec.services.values() for text in texts(service)]
    used = {found for text in every for found in TEMPLATE.findall(text)}

    assert set() == spec.settings.keys() - used


DYNAMO = [file.stem for file in SHIPPED if any("dynamo.frontend" in service.run for service in _services(file.stem))]


@pytest.mark.parametrize("name", DYNAMO)
def test_stacks_of_dynamo(name: str) -> None:
    """Calls carry the session as a label unless another router decides. Data that answers lack are traced, and all servers are local
    unless workers run on other machines.
    """
    spec = STACKS[name]
    frontend = spec.services["frontend"]
    environments = [{**spec.env, **service.env} for service in spec.services.values()]
    dynamo = [environment for environment in environments if "DYN_DISCOVERY_BACKEND" in environment]

    assert spec.labels.release or "--router-session-affinity-ttl-secs=3600" in frontend.run
    assert "{run_dir}/requests.jsonl" == spec.labels.trace
    assert frontend.env["DYN_REQUEST_TRACE_FILE_PATH"].endswith("/requests.jsonl")
    local = ("127.0.0.1", "127.0.0.1", "lo") if not any(service.is_placed for service in spec.services.values()) else (None,) * 3
    assert [local] * len(dynamo) == [
        tuple(environment.get(f"DYN_{name}_HOST") for name in ("SYSTEM", "TCP_RPC", "TCP_RESPONSE_STREAM")) for environment in dynamo
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


@pytest.mark.parametrize("name", [file.stem for file in SHIPPED if "engines/vllm.yaml" in file.read_text()])
def test_the_engines_of_routers(name: str) -> None:
    """The engines behind a router start as the backend `vllm` does, with the same model and settings."""
    behind, alone = STACKS[name], STACKS["vllm"]

    assert alone.services["engine"].run == behind.services["engine"].run
    assert alone.settings.items() <= behind.settings.items()
    assert (alone.model, alone.python) == (behind.model, behind.services["engine"].python)


@pytest.mark.parametrize("name", [file.stem for file in SHIPPED if "routers/" in file.read_text() and "dynamo" not in file.stem])
def test_routers_repeat_nothing(name: str) -> None:
    """Routers do not repeat calls, exclude no engine, and get the session of each call. A router within Dynamo forwards no calls."""
    spec = STACKS[name]

    router = {*spec.services["router"].run}
    assert {"--disable-retries", "--disable-circuit-breaker", "--host=127.0.0.1"} <= router or "pytest_agentbench.router" in router
    assert ("session", "router") == (spec.labels.kind, spec.front)


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


@each_stack
def test_what_clusters_would_get(name: str) -> None:
    """The job scripts and manifests of services on other machines can be made anywhere. Scripts are valid for bash."""
    spec = STACKS[name]
    assert isinstance(spec, StackKind)
    made = dict(spec.submissions())

    assert [service for service, keys in spec.services.items() if keys.is_placed] == [*made]
    for service, text in made.items():
        if spec.services[service].on:
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
            assert "\0" not in text
        else:
            assert ["DynamoGraphDeployment"] == [each["kind"] for each in read_manifests(text, service)]


WORKER = ["--served-model-name=Qwen/Qwen3-0.6B", "--tensor-parallel-size=1", "--max-model-len=32768", "--dyn-tool-call-parser=hermes"]

#: Component of backends/manifests/dynamo-k8s.yaml -> its arguments that Dynamo's template does not have.
ADDED = {"Frontend": ["--router-mode=kv", "--router-session-affinity-ttl-secs=3600"], "decode": WORKER, "prefill": WORKER}


@pytest.mark.slow
def test_the_manifest_of_dynamo(tmp_path: Path) -> None:
    """The manifest is the template in Dynamo's wheel, with a few arguments more."""
    changes = [("model", "Qwen/Qwen3-0.6B"), ("settings.deployment", "vllm-disagg")]
    spec = load_backend(str(ROOT / "backends" / "dynamo-k8s.yaml"), ROOT, changes)
    assert isinstance(spec, StackSpec)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={tmp_path}", "ai-dynamo==1.6.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: the manifest of Dynamo, because its wheel cannot be downloaded: {done.stderr.strip()[-300:]}")
    (wheel,) = tmp_path.glob("*.whl")
    template = ZipFile(wheel).read("dynamo/profiler/templates/dgd/vllm/disagg.yaml").decode()
    (wanted,) = read_manifests(template, "the template")
    for component in wanted["spec"]["components"]:
        (container,) = component["podTemplate"]["spec"]["containers"]
        container["args"] += ADDED[component["name"]]
    labels = {"agentbench.io/owner": "dry-run", "agentbench.io/service": "dynamo"}

    assert [labelled(wanted, labels)] == read_manifests(submissions(spec, tmp_path)["dynamo"], "ours")


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
    """docs/backends/stacks.md lists every shipped backend in its table."""
    table = (ROOT / "docs" / "backends/stacks.md").read_text().partition("| backend |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)

    assert sorted(file.stem for file in SHIPPED) == sorted(listed)


def test_environments_are_on_the_page() -> None:
    """docs/backends/prepare.md lists every environment."""
    text = (ROOT / "docs" / "backends/prepare.md").read_text()

    assert [] == [name for name in environments() if f"`{name}`" not in text]
