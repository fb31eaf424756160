"""What plain Python hands to a sink: rows, where the input stands after them, an interval. Checked first."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import TYPE_CHECKING

import pyarrow as pa

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import JsonValue

_MIN_INTERVAL_S = 0.001
_MAX_INTERVAL_S = 365 * 24 * 60 * 60


def kept_position(value: JsonValue) -> JsonValue:
    """A copy of a position, so that who moves an offset on in place does not move the one of rows not written yet.

    Raises:
        ConfigError: It would not come back from a checkpoint as it is.
    """
    _check_position(value)
    return deepcopy(value)


def _check_position(value: object) -> None:
    """Refuse a position that would not come back from a checkpoint as it is: whatever JSON has no form for.

    Raises:
        ConfigError: Names the value and its type.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"position holds {value!r}, which JSON has no form for", hint="Use a finite number.")
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise ConfigError(f"position has the key {key!r}; in JSON keys are text", hint="Use str(key).")
            _check_position(value[key])
    elif isinstance(value, list):
        for element in value:
            _check_position(element)
    elif value is not None and type(value) not in {bool, int, float, str}:
        raise ConfigError(
            f"position holds {value!r}, of type {type(value).__name__}; it must be a JSON value",
            hint="Use None, bool, int, float, str, or lists and dictionaries of these; int(value) for a numpy integer.",
        )


def batches_of(rows: object) -> list[pa.RecordBatch]:
    """The batches of a record batch or table.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if isinstance(rows, pa.Table):
        return list(rows.to_batches())
    raise ConfigError(
        f"rows are of type {type(rows).__name__}; write takes a pyarrow RecordBatch or Table",
        hint="Make one, for instance with pyarrow.Table.from_pylist(rows).",
    )


def milliseconds_of(interval_s: object) -> int | None:
    """An interval between checkpoints, from seconds; None for none.

    Raises:
        ConfigError: It is no number, or none that makes sense.
    """
    if interval_s is None:
        return None
    if (
        isinstance(interval_s, int | float)
        and _MIN_INTERVAL_S <= interval_s <= _MAX_INTERVAL_S
        and interval_s is not True
    ):
        return round(interval_s * 1000)
    raise ConfigError(
        f"checkpoint_interval_s is {interval_s!r}; it must be a number from {_MIN_INTERVAL_S} to {_MAX_INTERVAL_S}",
        hint="Leave it out to take checkpoints by checkpoint() alone.",
    )
