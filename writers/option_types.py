"""The types of a format's options, checked when it is made: what reads a recipe back takes nothing else."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import TYPE_CHECKING, Any, cast

import pydantic

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable


def settle_options(format: Any, kind: type[Any]) -> None:
    """Refuse options of another type than their fields have; a list that stands for a tuple becomes one.

    Args:
        format: A frozen dataclass, from its ``__post_init__``.
        kind: The class whose fields are options; a subclass may have others, which are its own business.

    Raises:
        ConfigError: Names the option and, where it is clear what was meant, how to write it.
    """
    for field, adapter, annotation in _adapters(cast("Hashable", kind)):
        given = getattr(format, field.name)
        if isinstance(given, list) and _takes_tuple(annotation):
            object.__setattr__(format, field.name, tuple(given))
        try:
            adapter.validate_python(getattr(format, field.name), strict=True)
        except pydantic.ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            shown = f"={given!r}" if field.repr else ""
            raise ConfigError(
                f"{kind.__name__} option {field.name}{shown} has a wrong type: {problem}.",
                hint=_meant(given, adapter, annotation),
            ) from error


@functools.cache
def _adapters(kind: Any) -> list[tuple[dataclasses.Field[Any], pydantic.TypeAdapter[Any], Any]]:
    annotations = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    return [(field, pydantic.TypeAdapter(annotations[field.name]), annotations[field.name]) for field in fields]


def _takes_tuple(annotation: Any) -> bool:
    return any(typing.get_origin(one) is tuple for one in (annotation, *typing.get_args(annotation)))


def _takes(annotation: Any, kind: type) -> bool:
    return kind in (annotation, *typing.get_args(annotation))


def _meant(given: Any, adapter: pydantic.TypeAdapter[Any], annotation: Any) -> str:
    if isinstance(given, str) and _takes_tuple(annotation):
        flags = " Or True or False, without quotes." if _takes(annotation, bool) else ""
        return f"Write ({given!r},).{flags}"
    try:
        return f"Write {adapter.validate_python(given)!r}."
    except pydantic.ValidationError:
        return "See docs/FORMATS.md for what it takes."
