"""The sampling parameters of an agent's settings, which go into every request: what each of them may be."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.options import MOST, ValueKind, number, whole
from pytest_agentbench.records import SAMPLING, Json

PARAMETERS: Mapping[str, ValueKind] = {
    "temperature": number(0),
    "top_p": number(0, 1),
    "max_tokens": whole(1),
    "seed": whole(-MOST - 1)._replace(words="a whole number"),
    "model": ValueKind(lambda value: isinstance(value, str) and value != "", "the name of a model"),
}


def sampling_of(settings: Json) -> Json:
    """The sampling parameters among an agent's settings; raises ConfigError for one of the wrong type or out of range."""
    parameters = {name: settings[name] for name in SAMPLING if name in settings}
    for name, value in parameters.items():
        if not PARAMETERS[name].allows(value):
            raise ConfigError(f"agent: {name} should be {PARAMETERS[name].words}, not {value!r}")
    return parameters
