"""Compiles JSON Schemas to functions, and caches them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fastjsonschema
import orjson

from pytest_agentbench.records import Json


@functools.lru_cache(maxsize=1024)
def validator(schema: str | bytes) -> Callable[[Json], Any]:
    """Returns a function that raises fastjsonschema.JsonSchemaValueException if an object does not match the schema. Adds no defaults."""
    compiled: Callable[[Json], Any] = fastjsonschema.compile(orjson.loads(schema), use_default=False)
    return compiled
