"""Columnar formats as plain data, so that whoever finds a stage can encode it as its sink would have."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pydantic

from partfile.filesystems.errors import ConfigError
from partfile.writers.formats import BULK_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from partfile.writers.port import BulkFormat, Format

_NAME = "format"


def recipe_of(format: Format) -> dict[str, JsonValue]:
    """The format's name, under ``"format"``, and each of its options, as JSON takes them.

    Raises:
        ConfigError: A format of the user's own, or one whose parts are not written as a whole: it has no recipe.
    """
    for name, kind in BULK_FORMATS.items():
        if type(format) is kind:
            options: dict[str, JsonValue] = pydantic.TypeAdapter(kind).dump_python(format, mode="json")
            return {_NAME: name, **options}
    raise ConfigError(
        f"{type(format).__name__} has no recipe: only {', '.join(sorted(BULK_FORMATS))} can be staged.",
        hint='Use one of them, or columnar="per_checkpoint".',
    )


def format_of(recipe: Mapping[str, JsonValue]) -> BulkFormat:
    """The format that a recipe describes; options that it lacks have their defaults.

    Raises:
        ConfigError: The recipe is not one, and the message names the field at fault.
    """
    options = dict(recipe)
    name = options.pop(_NAME, None)
    kind: Any = BULK_FORMATS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _refused(_NAME, f"{name!r} is none of {', '.join(sorted(BULK_FORMATS))}")
    known = {field.name for field in dataclasses.fields(kind)}
    for option in options.keys() - known:
        raise _refused(option, f"the {name} format has no such option")
    try:
        # As JSON, which is what a recipe is: strict, and yet a list may stand for a tuple.
        made: BulkFormat = pydantic.TypeAdapter(kind).validate_json(json.dumps(options), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refused(".".join(str(place) for place in first["loc"]), first["msg"]) from error
    return made


def _refused(field: str, what: str) -> ConfigError:
    at = f" field {field!r}" if field else ""
    return ConfigError(
        f"A recipe of a staged part cannot be used:{at} {what}.", hint="It may come from a newer version of partfile."
    )
