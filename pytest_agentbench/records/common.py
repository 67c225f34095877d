"""What all records speak of."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

#: Metadata of the field of a record whose entries stand among the record's own keys where JSON has it: backends and plugins add some.
OPEN = {"open": True}

#: Metadata of a field that has the same value in many records, which `codec` writes once.
SHARED = {"shared": True}

#: Trials of a scenario that a session may ask for: more would be a slip of a finger, for nobody waits for so many.
MOST_TRIALS = 1000

#: Settings of an agent that are sampling parameters of every request.
SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "model")
