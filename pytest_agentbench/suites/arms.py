"""The arms of an A/B session and the state of their caches: the words for them, and the variants of a suite that arms make."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import urlsplit

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.suite import SUITE_FILE, Suite

AGENT = "agent:"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
DEFAULT = "default"

#: What is in a prefix cache when measuring begins: nothing of before, the first calls of what is measured, or whatever is there.
COLD, PRIMED, CARRY = CACHE_POLICIES = ("cold", "primed", "carry")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. The first arm is what the second one is compared with."""

    name: str
    kind: str  # backend | agent
    value: str  # a backend's name, YAML or URL; an agent's kind or import path

    @property
    def written(self) -> str:
        """As the option has it, without a name."""
        return f"{AGENT}{self.value}" if self.kind == "agent" else self.value


class Side(NamedTuple):
    """What a variant of an A/B session is made of."""

    variant: str  # of the suite
    arm: str


def parse_arms(text: str) -> tuple[Arm, ...]:
    """The arms that `A,B` or `NAME=A,NAME=B` speaks of; none of an empty text. Raises ValueError that says what would work."""
    if not text.strip():
        return ()
    arms = tuple(_arm(each.strip()) for each in text.split(","))
    if len(arms) != 2 or not all(arm.value for arm in arms):
        raise ValueError("two arms: BACKEND,BACKEND or agent:KIND,agent:KIND, each with NAME= in front if you like")
    if arms[0].kind != arms[1].kind:
        raise ValueError("two backends or two agents, not one of each: what differs in both cannot be told apart")
    if arms[0].name.lower() == arms[1].name.lower():
        raise ValueError(f"two arms with different names, such as old={arms[0].value},new={arms[1].value}")
    return arms


def _arm(text: str) -> Arm:
    name, equals, value = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        name, value = "", text
    kind = "agent" if value.startswith(AGENT) else "backend"
    value = value.removeprefix(AGENT)
    name = name or _default_name(kind, value)
    if name == DEFAULT:
        raise ValueError("arms that are not named `default`, which is the suite's own variant")
    return Arm(name, kind, value)


def _default_name(kind: str, value: str) -> str:
    """A word that can stand in a test id: a URL's host and port, a file's name without its ending, what is behind a colon."""
    if kind == "agent":
        name = value.rpartition(":")[2]
    elif value.startswith(("http://", "https://")):
        name = urlsplit(value).netloc
    else:
        name = PurePath(value).stem
    return re.sub(r"[^A-Za-z0-9_.]", "_", name).lstrip("_.")


def variant_in(variant: str, arm: str) -> str:
    """What a variant is called under an arm."""
    return arm if variant == DEFAULT else f"{variant}-{arm}"


def arm_of(variant: str) -> str:
    """The arm that a variant is under."""
    return variant.rpartition("-")[2]


def in_arms(suite: Suite, variants: Sequence[str], arms: Sequence[Arm]) -> tuple[Suite, tuple[str, ...]]:
    """The suite with a variant for each chosen one under each arm, and their names; raises ConfigError for a name that is taken."""
    made = {}
    for variant in variants:
        own = suite.variants.get(variant, {})
        for arm in arms:
            name = variant_in(variant, arm.name)
            if name in suite.variants:
                raise ConfigError(
                    f"{suite.folder / SUITE_FILE}: it has a variant {name!r}; give the arm another name, such as a={arm.written}"
                )
            made[name] = {"kind": arm.value} if arm.kind == "agent" else own
    return dataclasses.replace(suite, variants={**suite.variants, **made}), tuple(made)


def sides(variants: Sequence[str], arms: Sequence[Arm]) -> dict[str, Side]:
    """Name of a variant under an arm -> both."""
    return {variant_in(variant, arm.name): Side(variant, arm.name) for arm in arms for variant in variants}
