"""What suites say to everybody who reads them: no secret may be a part of a name, and what stands there is no secret."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.key_shapes import places_of_keys
from pytest_agentbench.lib.redact import PublicText

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario, Suite


def public_of(suites: Iterable[Suite]) -> PublicText:
    """Names, ids, tools and data of suites; their settings are none of it, for they may hold keys."""
    texts, labels = [], []
    for suite in suites:
        texts.append(_json([suite.name, [*suite.variants], [*suite.scorers], codec.plain(suite.for_pool())["scenarios"]]))
        labels.append(_json([scenario.expected for scenario in suite.scenarios]))
    return PublicText("\n".join(texts), "\n".join(labels))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def refuse_keys_in_names(file: Path, own: Iterable[str], scenarios: Iterable[Scenario]) -> None:
    """Raises ConfigError, without the key, where a name has the shape of one: the suite's `own`, of scenarios, of tools, of arguments."""
    for what, name in _names(own, scenarios):
        if any(places_of_keys(name)):
            raise ConfigError(f"{file}: {what} has the shape of a key, and names are in every report; give it another name")


def _names(own: Iterable[str], scenarios: Iterable[Scenario]) -> Iterator[tuple[str, str]]:
    """What it is, and the name."""
    yield from (("the name of the suite or of a variant", name) for name in own)
    seen: set[int] = set()
    for number, scenario in enumerate(scenarios, 1):
        yield f"the id of scenario {number}", scenario.id
        yield f"the cluster of scenario {number}", scenario.cluster or ""
        if id(scenario.tools) not in seen:
            seen.add(id(scenario.tools))
            yield from _names_of_tools(scenario, number)


def _names_of_tools(scenario: Scenario, number: int) -> Iterator[tuple[str, str]]:
    for place, tool in enumerate(scenario.tools, 1):
        yield f"the name of tool {place} of scenario {number}", tool.name
        for position, name in enumerate(tool.parameters.get("properties") or {}, 1):
            yield f"the name of argument {position} of tool {place} of scenario {number}", name
