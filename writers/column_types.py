"""Which columns a text format takes. What has no documented form is refused at the first batch, by name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from partfile.filesystems.errors import UnsupportedTypeError
from partfile.writers.scalar_text import is_binary, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIANT_HINT = "Cast it before the sink: to_json(v) for text, or variant_get for its fields."
_MARKED_HINT = "Cast it before the sink to text or to plain columns."


def check_columns(schema: pa.Schema, form: str, *, nested: bool) -> None:
    """Refuse a schema with a column that has no form in ``form``.

    Args:
        schema: The columns.
        form: What the message calls the format, as ``"JSON lines"``.
        nested: Whether lists, maps and structs have a form.

    Raises:
        UnsupportedTypeError: Names the first such column, the place within it, and the type.
    """
    _check_names([column.name for column in schema], "", form)
    for column in schema:
        for path, kind, hint in _refused(column.name, column, nested=nested):
            at = f" at {path!r}" if path != column.name else ""
            raise UnsupportedTypeError(
                f"Column {column.name!r} of type {column.type} cannot be written as {form}: {kind} has no form{at}.",
                hint=hint,
            )


def _check_names(names: list[str], path: str, form: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise UnsupportedTypeError(
                f"Column {path + name!r} is there {count} times, and {form} needs names that differ.",
                hint="Rename one of them.",
            )


def _refused(path: str, field: pa.Field[Any], *, nested: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the place, type and way out of each part of a column that has no form."""
    kind = field.type
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        yield from _refused(path, field.with_type(kind.value_type), nested=nested)
    elif types.is_decimal(kind) and kind.scale < 0:
        yield path, str(kind), "Cast it to a decimal whose scale is not negative."
    elif is_scalar(kind):
        return
    elif not nested:
        yield path, str(kind), "Use json or parquet, or turn the column into text with to_json."
    elif types.is_map(kind):
        yield from _refused_map(path, kind)
    elif is_list(kind):
        yield from _refused(f"{path}[]", kind.value_field, nested=True)
    elif types.is_struct(kind):
        yield from _refused_struct(path, kind)
    else:
        yield path, str(kind), "Cast the column to a type that docs/FORMATS.md lists, or drop it."


def _refused_map(path: str, kind: Any) -> Iterator[tuple[str, str, str]]:
    key = kind.key_type.value_type if types.is_dictionary(kind.key_type) else kind.key_type
    if not is_text(key):
        yield f"{path}.key", f"a map key of type {key}", "Keys of JSON objects are text: cast the keys to string."
    yield from _refused(f"{path}.value", kind.item_field, nested=True)


def _refused_struct(path: str, kind: pa.StructType) -> Iterator[tuple[str, str, str]]:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    for field in fields:
        # Spark sends a variant, a geometry and a geography as structs, and marks one of the fields.
        for mark in (field.metadata or {}).keys() & {b"variant", b"geometry", b"geography"}:
            word = mark.decode()
            yield path, f"Spark's {word}", _VARIANT_HINT if word == "variant" else _MARKED_HINT
    _check_names([field.name for field in fields], f"{path}.", "JSON")
    for field in fields:
        yield from _refused(f"{path}.{field.name}", field, nested=True)


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values are lists. List views are not among them: Arrow 26 casts them to broken lists."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_scalar(kind: pa.DataType) -> bool:
    """Tell whether a single text stands for a value of this type."""
    return bool(
        types.is_null(kind)
        or is_number(kind)
        or is_text(kind)
        or is_binary(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
    )
