"""The numbers that ORC gives to columns: its types form a tree, and each has the next number on the way down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow import types

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def column_ids(schema: pa.Schema, paths: Sequence[str], option: str) -> list[int]:
    """The numbers of some columns of single values.

    Args:
        schema: The columns of a file, plain.
        paths: Names; a field of a struct is named with its path, as ``"a.b"``.
        option: Where these names come from, for messages.

    Raises:
        ConfigError: A path names no column, or one that holds no single values.
    """
    known: dict[str, int | None] = {}
    # The root is 0.
    following = 1
    for field in schema:
        following = _number(field.name, field.type, following, known)
    ids = []
    for path in paths:
        number = known.get(path)
        if number is None:
            what = "holds no single values" if path in known else "is no column"
            single = ", ".join(sorted(name for name, number in known.items() if number is not None))
            raise ConfigError(f"{option} names {path!r}, which {what}.", hint=f"There are {single or 'none'}.")
        ids.append(number)
    return ids


def _number(path: str, kind: Any, own: int, known: dict[str, int | None]) -> int:
    """Note the number of a column and of the fields of a struct, and return the number after all that is in it."""
    known.setdefault(path, None if types.is_nested(kind) else own)
    following = own + 1
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            field = kind.field(index)
            following = _number(f"{path}.{field.name}", field.type, following, known)
        return following
    for inner in _inner_types(kind):
        # What is in lists and maps has numbers, and no name here.
        following = _number("", inner, following, {})
    return following


def _inner_types(kind: Any) -> list[Any]:
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if types.is_nested(kind) else []
