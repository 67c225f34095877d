"""Templates such as {port} and {engine.url} in the texts of a stack's YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_agentbench.errors import ConfigError

#: A template in a command, an environment value or a mount: {port}, {engine.url}, {max_model_len}. Braces of JSON do not match.
TEMPLATE = re.compile(r"\{([a-z_][\w-]*(?:\.[\w-]+)*)\}", re.IGNORECASE)


def expand(text: str, values: Mapping[str, str], where: str) -> str:
    """Replaces the templates in a text by values. Raises ConfigError for an unknown template, with `where` and the known names."""

    def value(match: object) -> str:
        name = match[1]  # type: ignore[index]
        if name not in values:
            raise ConfigError(f"{where}: {{{name}}} is unknown; known: {', '.join(f'{{{known}}}' for known in sorted(values))}")
        return values[name]

    return TEMPLATE.sub(value, text)
