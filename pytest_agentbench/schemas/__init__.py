"""JSON Schemas of the files that users write and of the files that runs consist of. `agentbench schema` prints them."""

from __future__ import annotations

from pytest_agentbench.records import Json
from pytest_agentbench.schemas import result_files, yaml_files


def schema(name: str) -> Json:
    """Returns the JSON Schema of a file: `suite`, `backend`, or one of `result_files.FILES`."""
    yamls = {"suite": yaml_files.suite_schema, "backend": yaml_files.backend_schema}
    return yamls[name]() if name in yamls else result_files.schema_of(name)
