"""Checks whether the agent's number is right."""

from __future__ import annotations

import math
import re
import sys

sys.path.insert(0, "/tests")
from checks import small_text, verify  # noqa: E402

KWH, OFF = 19027.1, 0.1001


def one_number_is_there() -> None:
    text = small_text("/root/answer.txt").strip()
    assert re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII), f"answer.txt holds {text[:60]!r}, should be one number"


def it_is_right() -> None:
    number = float(small_text("/root/answer.txt"))
    assert math.isclose(number, KWH, rel_tol=0, abs_tol=OFF), f"{number} kWh"


verify(one_number_is_there, it_is_right)
