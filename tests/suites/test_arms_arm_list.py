"""Values of the option for arms: their meaning, and the errors about invalid ones."""

from __future__ import annotations

import pytest

from pytest_agentbench.suites.arms import MOST_ARMS, Arm, concurrencies, parse_arms


@pytest.mark.parametrize(
    ("text", "names", "values", "kind"),
    [
        ("vllm,thunder", ("vllm", "thunder"), ("vllm", "thunder"), "backend"),
        ("a,b,c", ("a", "b", "c"), ("a", "b", "c"), "backend"),
        ("old=embedded, new=embedded", ("old", "new"), ("embedded", "embedded"), "backend"),
        (
            "backends/one.yaml,http://127.0.0.1:8000/v1",
            ("one", "127.0.0.1_8000"),
            ("backends/one.yaml", "http://127.0.0.1:8000/v1"),
            "backend",
        ),
        ("a=http://h/v1?x=y,agent=http://g/v1", ("a", "agent"), ("http://h/v1?x=y", "http://g/v1"), "backend"),
        ("agent:tool_calling,b=agent:./agent.py:Mine", ("tool_calling", "b"), ("tool_calling", "./agent.py:Mine"), "agent"),
        ("variant:default,variant:rethinking", ("default", "rethinking"), ("default", "rethinking"), "variant"),
        ("model:qwen/qwen3-8b,small=model:tiny", ("qwen3_8b", "small"), ("qwen/qwen3-8b", "tiny"), "model"),
        ("set:concurrency=8|16", ("concurrency_8", "concurrency_16"), ("concurrency=8", "concurrency=16"), "set"),
        (
            "set:backend.router_mode=kv|round_robin",
            ("kv", "round_robin"),
            ("backend.router_mode=kv", "backend.router_mode=round_robin"),
            "set",
        ),
        (
            "vllm-router[settings.policy=round_robin|cache_aware],few=backends/smg.yaml[services.engine.replicas=2],smg",
            ("vllm_router_round_robin", "vllm_router_cache_aware", "few", "smg"),
            (
                "vllm-router[settings.policy=round_robin]",
                "vllm-router[settings.policy=cache_aware]",
                "backends/smg.yaml[services.engine.replicas=2]",
                "smg",
            ),
            "backend",
        ),
        ("set:agent.temperature=0|0.7", ("temperature_0", "temperature_0.7"), ("agent.temperature=0", "agent.temperature=0.7"), "set"),
        ("set:backend.cache=true,off=set:backend.cache=false", ("cache_true", "off"), ("backend.cache=true", "backend.cache=false"), "set"),
    ],
)
def test_arms_have_names(text: str, names: tuple[str, ...], values: tuple[str, ...], kind: str) -> None:
    """The name of an arm is that of its backend, file, host, agent, variant, model or value, or the one that the user gives."""
    arms = parse_arms(text)

    assert names == tuple(arm.name for arm in arms)
    assert values == tuple(arm.value for arm in arms)
    assert {kind} == {arm.kind for arm in arms}


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("one", f"2 to {MOST_ARMS} arms: BACKEND,BACKEND, agent:KIND,agent:KIND, variant:NAME,"),
        (",".join(f"b{number}" for number in range(MOST_ARMS + 1)), f"2 to {MOST_ARMS} arms"),
        ("set:concurrency=8", f"2 to {MOST_ARMS} arms"),
        ("a,", f"2 to {MOST_ARMS} arms"),
        ("agent:react,agent:", f"2 to {MOST_ARMS} arms"),
        ("a,agent:react", "arms of one kind that differ in one setting"),
        ("set:concurrency=8,set:agent.temperature=1", "arms of one kind that differ in one setting"),
        ("same,same", "arms with different names, such as old=same,new=same"),
        ("x/same.yaml,a,y/Same.yaml", "arms with different names, such as old=y/Same.yaml,new=y/Same.yaml"),
        ("set:agent.stop=a b|a_b", "arms with different names"),
        ("default,b", "arms with other names than `default`"),
        ("default=variant:hot,variant:cold", "arms with other names than `default`"),
        ("set:concurrency", "arms of a setting as set:PATH=VALUE|VALUE"),
        ("set:concurrency=8|", "arms of a setting as set:PATH=VALUE|VALUE"),
        (
            "set:timeout=8|9",
            "arms that differ in concurrency, agent.…, model or backend.…, and not in timeout, which all arms share",
        ),
        ("x=set:concurrency=8|16", "arms that are named one by one, such as x=set:concurrency=8"),
        ("x=a[settings.p=1|2]", "arms that are named one by one, such as x=a[settings.p=1]"),
        ("a[settings.p=1|],b", "arms of a backend as BACKEND[PATH=VALUE|VALUE], for example a[settings.p=a|b]"),
        ("a[settings.p={x],b", "arms whose values are valid YAML: settings.p:2: not valid YAML"),
        ("set:concurrency=0|16", "arms whose concurrency is a whole number from 1 up, not 0"),
        ("set:concurrency=many|16", "arms whose concurrency is a whole number from 1 up, not many"),
        ("set:agent.a=[|1", "arms whose values are valid YAML: agent.a:2: not valid YAML"),
    ],
)
def test_invalid_arms_are_refused(text: str, works: str) -> None:
    """One arm, too many arms, arms of several kinds, equal arms, and settings that arms cannot have are errors that say what would work."""
    with pytest.raises(ValueError, match="arms") as refused:
        parse_arms(text)

    assert works in str(refused.value)


def test_a_setting_is_read_as_yaml() -> None:
    """An arm has the path and the value of its setting, parsed as for --agentbench-set."""
    warm, cold = parse_arms("set:agent.temperature=0.7|0")
    kv, _ = parse_arms("set:backend.router.mode=kv|random")
    model, _ = parse_arms("set:model=big|small")

    assert ("agent.temperature", 0.7, 0) == (warm.path, warm.setting, cold.setting)
    assert (("router.mode", "kv"),) == kv.backend_changes
    assert ("agent.model", "big") == (model.path, model.setting)
    assert ("agent.model", "7b") == (Arm("x", "model", "7b").path, Arm("x", "model", "7b").setting)
    assert {"concurrency_8": 8, "concurrency_16": 16} == concurrencies(parse_arms("set:concurrency=8|16"))
    assert ({}, ()) == (concurrencies(parse_arms("a,b")), warm.backend_changes)


def test_a_backend_with_a_changed_setting() -> None:
    """Such an arm has its backend and the change. Brackets in the address of a host are no setting."""
    changed, plain, flags, address = parse_arms("smg[settings.ttft_ms=7],smg,x=smg[settings.flags=--a,--b=1],http://[::1]:8000/v1?a[b=c]")

    assert (("settings.flags", "--a,--b=1"),) == flags.backend_changes
    assert ("smg", (("settings.ttft_ms", 7),)) == (changed.backend, changed.backend_changes)
    assert ("smg", ()) == (plain.backend, plain.backend_changes)
    assert ("http://[::1]:8000/v1?a[b=c]", ()) == (address.backend, address.backend_changes)
