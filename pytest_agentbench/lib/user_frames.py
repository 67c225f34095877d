"""The place in a user's own file at which an exception was raised, as part of its text."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

#: Folders with code that is not the user's: this package, the standard library and installed packages.
OTHERS = (str(Path(__file__).parents[1]), *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

_PLACE = re.compile(r" \(([^()]+\.py:\d+)\)$")


def with_place(text: str, error: BaseException) -> str:
    """Returns the text of an exception with its place at the end of the first line: `KeyError: 'x' (scorers.py:12)`.

    The place is the last frame in a file of the user. The text is unchanged if no frame is in such a file.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.endswith(".py") and not frame.filename.startswith(OTHERS)]
    if not own:
        return text
    first, newline, rest = text.partition("\n")
    return f"{first} ({Path(own[-1].filename).name}:{own[-1].lineno}){newline}{rest}"


def cause_of(text: str) -> str:
    """Returns what texts of one cause have in common: the words before the first colon, and the place.

    Without a place it is the whole text. An exception that names its scenario has another text for each of them.
    """
    first = text.partition("\n")[0]
    if (place := _PLACE.search(first)) is None:
        return text
    return f"{first.partition(': ')[0]} ({place[1]})"
