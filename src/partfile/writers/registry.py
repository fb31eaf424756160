"""Formats by name: ``FileSink(format=..., compression=...)``, and the description of a format in a checkpoint.

A checkpoint stores a format as its name and options, as data, so that a later process can encode what this one staged.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from typing import TYPE_CHECKING, Any, cast

import pydantic

from partfile.errors import ConfigError, PartfileError, plain_words
from partfile.writers.avro import AvroFormat
from partfile.writers.base import BulkFormat, Format
from partfile.writers.compression import Compression
from partfile.writers.csv import CsvFormat
from partfile.writers.json import JsonLinesFormat
from partfile.writers.orc import OrcFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.text import LineFormat, TextFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import JsonValue


_LINE_FORMATS: dict[str, type[LineFormat]] = {"text": TextFormat, "json": JsonLinesFormat, "csv": CsvFormat}
BULK_FORMATS: dict[str, type[BulkFormat]] = {"parquet": ParquetFormat, "orc": OrcFormat}
"""Formats whose parts are written as a whole."""
FORMATS: dict[str, type[Format]] = {**_LINE_FORMATS, "avro": AvroFormat, **BULK_FORMATS}
"""Every format, by the names that users and format specs know them by."""


def resolve_format(format: str | Format, compression: str | None = None, **options: Any) -> Format:
    """Make the format that a name, a compression and options describe.

    Args:
        format: ``"text"``, ``"json"``, ``"csv"``, ``"avro"``, ``"parquet"`` or ``"orc"``, or a format of the user's
            own, which is returned as it is.
        compression: For lines None or a codec of `Compression`, one member or frame from persist to persist; for the
            others the codec within the file, where None is the format's own default.
        options: The format's other fields, as ``header`` for CSV, and ``compression_level``.

    Raises:
        ConfigError: A name, compression or option that is not known, listing those that are.
    """
    if isinstance(format, Format):
        if compression is not None or options:
            names = ["compression"] * (compression is not None) + sorted(options)
            raise ConfigError(
                f"{', '.join(names)} cannot be given beside {type(format).__name__}.",
                hint=f"Set it on the format: {type(format).__name__}(...).",
            )
        return format
    kind: Any = _kind(format)
    level = options.pop("compression_level", None)
    known = [each.name for each in dataclasses.fields(kind) if not each.name.startswith("compression")]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"Did you mean {close[0]}? " if close else ""
            raise ConfigError(
                f"The {format} format has no option {name!r}.", hint=meant + _list([*known, "compression_level"])
            )
    if issubclass(kind, LineFormat):
        options["compression"] = Compression(codec=compression, level=level)
    else:
        # What is not given has the format's own default.
        given = {"compression": compression, "compression_level": level}
        options |= {name: value for name, value in given.items() if value is not None}
    made: Format = kind(**options)
    return made


def format_option_names() -> set[str]:
    """The names of all options that some format has."""
    kinds: list[Any] = list(FORMATS.values())
    return {"compression_level"}.union(*({each.name for each in dataclasses.fields(kind)} for kind in kinds))


_A_FORMAT = "Write for instance format='json', or pass a Format: format=partfile.JsonLinesFormat()."


def _kind(name: object) -> type[Format]:
    kind = FORMATS.get(name.lower()) if isinstance(name, str) else None
    if kind is None:
        near = difflib.get_close_matches(str(name).lower(), FORMATS, 1)
        meant = f"Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"The format {name!r} is not known.", hint=f"{_list(FORMATS)} {meant or _A_FORMAT}")
    return kind


def _list(names: Iterable[str]) -> str:
    return f"There are {', '.join(sorted(names))}."


_NAME = "format"
_ENCRYPTION = "encryption"


def spec_of(format: Format) -> dict[str, JsonValue]:
    """The format's name, under ``"format"``, and each of its options, as JSON takes them.

    Of encryption it only says that there is one: what encrypts is code, and keys have no place in a snapshot.

    Raises:
        ConfigError: A format of the user's own has no format spec.
    """
    for name, kind in FORMATS.items():
        if type(format) is kind:
            options = {option: _plain(getattr(format, option)) for option in _options(kind)}
            if _ENCRYPTION in options:
                options[_ENCRYPTION] = options[_ENCRYPTION] is not None
            return {_NAME: name, **json.loads(json.dumps(options))}
    raise ConfigError(
        f"{type(format).__name__} has no format spec: only {', '.join(sorted(FORMATS))} can be staged.",
        hint='Use one of them, or columnar="per_checkpoint".',
    )


def check_spec(format: Format) -> None:
    """Refuse a format whose format spec would not make the same format again: its staging files could never be encoded.

    Raises:
        ConfigError: Names the option.
    """
    if type(format) not in FORMATS.values():
        return
    try:
        made = format_of(json.loads(json.dumps(spec_of(format))), format)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{type(format).__name__} has an option that cannot be kept with staged rows: {error}",
            hint="Use plain numbers, texts and tuples of them, as option=('a', 1).",
        ) from error
    for option in _options(type(format)):
        if getattr(made, option) != getattr(format, option):
            raise ConfigError(
                f"{type(format).__name__} option {option} cannot be kept with staged rows: it comes back as "
                f"{getattr(made, option)!r}.",
                hint="Use plain numbers, texts and tuples of them, as option=('a', 1).",
            )


def lent_for(spec: Mapping[str, JsonValue], sink_format: Format | None) -> BulkFormat | None:
    """The sink's own format, where it may stand in for a format spec by which a staging file cannot be encoded.

    It is of the same columnar kind, is not what the format spec says itself, and encrypts if the format spec does.
    Never of a row
    format: the lines of a staging file have been made with the format spec's options.

    Args:
        spec: Of the staging file.
        sink_format: The format of the sink that encodes.
    """
    if not isinstance(sink_format, BulkFormat) or FORMATS.get(str(spec.get(_NAME))) is not type(sink_format):
        return None
    encrypts = getattr(sink_format, _ENCRYPTION, None) is not None
    if (spec.get(_ENCRYPTION) and not encrypts) or spec_of(sink_format) == dict(spec):
        return None
    return sink_format


def format_of(spec: Mapping[str, JsonValue], sink_format: Format | None = None) -> Format:
    """The format that a format spec describes; options that it lacks have their defaults.

    Args:
        spec: As ``spec_of`` made it, maybe in an older version.
        sink_format: The format of the sink that encodes, which lends its encryption where the format spec asks for one.

    Raises:
        ConfigError: The format spec is not one, or it asks for encryption and no format lends its own; names the field.
    """
    options = dict(spec)
    name = options.pop(_NAME, None)
    kind: Any = FORMATS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _refused(_NAME, f"{name!r} is none of {', '.join(sorted(FORMATS))}")
    for option in options.keys() - set(_options(kind)):
        raise _refused(option, f"the {name} format has no such option")
    is_encrypted = options.pop(_ENCRYPTION, False)
    try:
        # As JSON, which is what a format spec is: strict, and yet a list may stand for a tuple.
        made: Format = _adapter(kind).validate_json(json.dumps(options), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        what = plain_words(first)
        what = cause.message if isinstance(cause, PartfileError) else what
        raise _refused(".".join(str(place) for place in first["loc"]), what.rstrip(".")) from error
    return _encrypted(made, sink_format) if is_encrypted else made


@functools.cache
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Reads the options of a format. Made once: it takes two milliseconds, which each sink and task would pay."""
    return pydantic.TypeAdapter(kind)


def _encrypted(format: Format, sink_format: Format | None) -> Format:
    encryption = getattr(sink_format, _ENCRYPTION, None)
    if encryption is None:
        raise ConfigError(
            "A staged part was to be encrypted, and this format has no encryption.",
            hint=(
                "The command line has no keys. Encode it by a sink whose format has them: "
                "ParquetFormat(encryption=FUNCTION)"
            ),
        )
    changed: Format = dataclasses.replace(cast("Any", format), encryption=encryption)
    return changed


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _options(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _refused(field: str, what: str) -> ConfigError:
    at = f"field {field!r}: " if field else ""
    return ConfigError(
        f"A format spec of a staged part cannot be used: {at}{what}.",
        hint="It may come from a newer version of partfile (pip install --upgrade partfile).",
    )
