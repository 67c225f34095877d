"""Settings of a serving stack that the simulator can be asked about, and the one of a run as far as its backend says it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_agentbench.backends.stack.spec import TEMPLATE
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json
from pytest_agentbench.runs.contents import BackendUse
from pytest_agentbench.simulation.question import ROUTERS, Facts

BLOCK_SIZE = 16  # tokens; vLLM's, where nobody says another
MOST = 64  # settings of one table

#: Option of a service's command -> what it says of the setting.
FLAGS: Mapping[str, str] = {"num-gpu-blocks-override": "kv-blocks", "block-size": "block-size", "router-mode": "router"}
_FLAG = re.compile(r"--([\w-]+)(?:=(.*))?")


@dataclass(frozen=True)
class Setting:
    """Workers that read prompts and write answers, and the router before them."""

    workers: int
    kv_blocks: int  # of each worker's KV cache
    block_size: int  # tokens in a block
    router: str  # one of ROUTERS; of one worker `round_robin`, for there is nothing to choose

    @classmethod
    def of(cls, facts: Facts) -> Setting | None:
        """None where something is missing."""
        if missing(facts):
            return None
        workers, blocks, size = (int(facts.get(name, BLOCK_SIZE)) for name in ("workers", "kv-blocks", "block-size"))
        return cls(workers, blocks, size, str(facts["router"]) if workers > 1 else "round_robin")

    @property
    def text(self) -> str:
        router = f", {self.router}" if self.workers > 1 else ""
        return f"{self.workers} worker{'s' * (self.workers > 1)}, {self.kv_blocks} blocks{router}"

    @property
    def cache_tokens(self) -> int:
        """That a worker's KV cache holds."""
        return self.kv_blocks * self.block_size


def missing(facts: Facts) -> list[str]:
    """What a setting lacks."""
    needed = ["workers", "kv-blocks", *(["router"] if facts.get("workers") != 1 else [])]
    return [name for name in needed if name not in facts]


def facts_of(backend: BackendUse) -> Facts:
    """What run.json says of the setting that a run had: of the built-in engine all, of a stack of Dynamo what its YAML fixes."""
    if backend.kind == "embedded":
        return {"workers": 1, "kv-blocks": backend.more["kv_blocks"], "block-size": backend.more["block_size"]}
    workers = backend.more.get("ready", {}).get("workers", {})
    if backend.kind != "stack" or set(workers) != {"aggregated"}:
        return {}
    return {"workers": workers["aggregated"], **dict(_flags(backend.more))}


def _flags(stack: Json) -> Iterator[tuple[str, int | str]]:
    """What the commands of a stack's services say."""
    for service in stack["services"].values():
        words = [_filled(word, stack.get("settings", {})) for word in service.get("run", ())]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if (flag := _FLAG.fullmatch(word)) and (name := FLAGS.get(flag[1])):
                value = (flag[2] if flag[2] is not None else following).replace("-", "_")
                if value.isdecimal() if name != "router" else value in ROUTERS:
                    yield name, value if name == "router" else int(value)


def _filled(text: str, values: Json) -> str:
    """A word of a command with the settings of its YAML; other templates stay."""
    return TEMPLATE.sub(lambda template: str(values.get(template[1], template[0])), text)


def grid(workers: Sequence[int], kv_blocks: Sequence[int], routers: Sequence[str], facts: Facts) -> list[Setting]:
    """Every combination, each once, in this order; what is empty is as in the run. Raises ConfigError."""
    axes = {"workers": workers, "kv-blocks": kv_blocks, "router": routers}
    chosen: dict[str, Sequence[Any]] = {name: values or [facts[name]] for name, values in axes.items() if values or name in facts}
    choices = [{**facts, **dict(zip(chosen, values, strict=True))} for values in itertools.product(*chosen.values())]
    if lacking := {name: None for choice in choices for name in missing(choice)}:
        options = " and ".join(f"--{name}" for name in lacking)
        raise ConfigError(
            f"the run does not say its {' and '.join(lacking)}: say what to simulate with {options}, or what the run had with --own"
        )
    settings = dict.fromkeys(filter(None, map(Setting.of, choices)))
    if len(settings) > MOST:
        raise ConfigError(f"these are {len(settings)} settings, each of which takes a replay; ask for at most {MOST} at a time")
    return [*settings]
