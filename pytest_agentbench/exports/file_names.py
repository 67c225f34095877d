"""Names of files for ids of scenarios, which may be any text."""

from __future__ import annotations

import re
from hashlib import sha256

LONGEST = 120  # bytes: what is put before it or behind it has to find room, too


class FileNames:
    """Id -> name of a file or folder, without an ending: no two ids of one export have one name, however alike they are."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, id: str) -> str:
        """The id itself, or with `_` for what a name cannot hold; with a hash behind it where it is too long, or another id has it."""
        if id not in self._names:
            name = re.sub(r"[^\w.-]", "_", id)
            if len(name.encode()) > LONGEST or name in self._taken:
                name = f"{name.encode()[:LONGEST].decode(errors='ignore')}-{sha256(id.encode()).hexdigest()[:12]}"
            self._names[id] = name
            self._taken.add(name)
        return self._names[id]
