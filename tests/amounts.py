"""Reads numbers from a text, so that tests of phrases can check values without the words around them."""

from __future__ import annotations

import re

from pytest_agentbench.reports.document import Text, plain

_AMOUNT = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?: (?:%|ms|s|W|MiB)(?![\w/]))?")


def amounts(text: Text) -> list[str]:
    """Returns the numbers of a text from left to right, each with its unit: `["9", "10", "90.0 %"]`."""
    return _AMOUNT.findall(plain(text))
