"""Writes Parquet files, one for each table of a run. Units and meanings of columns are metadata of the files. Needs pyarrow:
`pip install 'pytest-agentbench[parquet]'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics.columns import FrameColumn, FrameTable

COMMAND = "pip install 'pytest-agentbench[parquet]'"


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a Parquet file for each table of the runs. Unknown values are null. Raises ConfigError if pyarrow is missing."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(f"Parquet files need pyarrow, which is not installed; {COMMAND}") from error
    for table in chosen.tables.all:
        pyarrow.parquet.write_table(_arrow(table), directory / f"{table.name}.parquet")


def _arrow(table: FrameTable) -> Any:
    import pyarrow as pa

    types = {"text": pa.string(), "number": pa.float64(), "count": pa.int64(), "flag": pa.bool_()}
    fields = [pa.field(head.name, types[head.kind], metadata=_about(head)) for head in table.heads]
    columns = [pa.array(table[head.name], types[head.kind], from_pandas=True) for head in table.heads]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _about(head: FrameColumn[Any]) -> dict[str, str]:
    return {"about": head.about, **({"unit": head.unit} if head.unit else {})}
