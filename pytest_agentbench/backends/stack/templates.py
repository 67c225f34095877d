"""Templates such as {port} and {engine.url} in the texts of a stack's YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_agentbench.errors import ConfigError

#: A template in a command, an environment value or a mount: {port}, {engine.url}, {max_model_len}. Braces of JSON do not match.
#: With a star, as in {engine.urls*}, it becomes several words of a command.
TEMPLATE = re.compile(r"\{([a-z_][\w-]*(?:\.[\w-]+)*)\*?\}", re.IGNORECASE)


def expand(text: str, values: Mapping[str, str], where: str) -> str:
    """Replaces the templates in a text by values.

    Raises ConfigError, which begins with `where`, for an unknown template, and for one with a star, because a text cannot be several words.
    """

    def value(match: re.Match[str]) -> str:
        if match[0].endswith("*}"):
            raise ConfigError(
                f"{where}: {match[0]} becomes several words, so it has to be a word of its own in `run` or `entrypoint`, "
                f"not {text!r}; {{{match[1]}}} puts them into one text, with commas"
            )
        return _value(match[1], values, where)

    return TEMPLATE.sub(value, text)


def expand_words(words: Iterable[str], values: Mapping[str, str], where: str) -> list[str]:
    """Returns the words of a command with their templates replaced by values.

    A word that is one template with a star, such as `{engine.urls*}`, becomes the parts of the value between its commas, each a word. An
    empty value becomes no word. Raises ConfigError for an unknown template, and for a star in any other word.
    """
    expanded: list[str] = []
    for word in words:
        match = TEMPLATE.fullmatch(word)
        if match is not None and word.endswith("*}"):
            expanded += filter(None, _value(match[1], values, where).split(","))
        else:
            expanded.append(expand(word, values, where))
    return expanded


def _value(name: str, values: Mapping[str, str], where: str) -> str:
    if name not in values:
        raise ConfigError(f"{where}: {{{name}}} is unknown; known: {', '.join(f'{{{known}}}' for known in sorted(values))}")
    return values[name]
