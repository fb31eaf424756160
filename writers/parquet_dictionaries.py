"""Which columns of a Parquet file are worth a dictionary, told by a few of its rows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST_ROWS = 1 << 14
"""A dictionary for fewer rows costs no more than to find out whether it is worth it."""
_RUNS = 8
_ROWS_A_RUN = 1 << 8


def repeating_columns(rows: pa.Table) -> bool | Sequence[str]:
    """The columns whose values come again, in the form of pyarrow's ``use_dictionary``: names, or True for all.

    pyarrow fills the dictionary of a column until it is full, and only then writes values as they are; where no value
    comes twice, that takes a fifth of the time of encoding, and more bytes than none. Short runs of rows from all over
    the table are looked at. Were each value there ``m`` times, about ``n * n * (m - 1) / 2 N`` of ``n`` values out of
    ``N`` would repeat an earlier one (the birthday problem). A dictionary is taken to be worth it from 1.5 on.

    Args:
        rows: Those of the first row group.
    """
    if rows.num_rows < FEWEST_ROWS or any(_is_nested(column.type) for column in rows.schema):
        return True
    apart = rows.num_rows // _RUNS
    sample = pa.concat_tables([rows.slice(apart * run, _ROWS_A_RUN) for run in range(_RUNS)])
    return [name for name, values in zip(sample.column_names, sample.columns, strict=True) if _repeats(values, rows)]


def _is_nested(kind: pa.DataType) -> bool:
    return bool(types.is_nested(kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind))


def _repeats(values: Any, rows: pa.Table) -> bool:
    count = len(values) - values.null_count
    try:
        repeated = count - pc.count_distinct(values).as_py()
    except pa.ArrowNotImplementedError:
        return True
    # As many of the table's rows are null as of those that are looked at.
    return bool(repeated * 4 * rows.num_rows >= count * len(values))
