"""Formats by name: what ``FileSink(format=..., compression=...)`` means."""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import ConfigError
from partfile.writers.avro import AvroFormat
from partfile.writers.compression import Compression
from partfile.writers.csv_rows import CsvFormat
from partfile.writers.json_lines import JsonLinesFormat
from partfile.writers.lines import LineFormat
from partfile.writers.orc import OrcFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.port import BulkFormat, Format
from partfile.writers.text import TextFormat

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINE_FORMATS: dict[str, type[LineFormat]] = {"text": TextFormat, "json": JsonLinesFormat, "csv": CsvFormat}
BULK_FORMATS: dict[str, type[BulkFormat]] = {"parquet": ParquetFormat, "orc": OrcFormat}
"""Formats whose parts are written as a whole."""
FORMATS: dict[str, type[Format]] = {**_LINE_FORMATS, "avro": AvroFormat, **BULK_FORMATS}
"""Every format, by the names that users and recipes know them by."""


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
                f"{', '.join(names)} cannot be given beside {type(format).__name__}.", hint="Set it on the format."
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


def _kind(name: object) -> type[Format]:
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigError(f"The format {name!r} is not known.", hint=_list(FORMATS) + " A Format object works too.")
    return FORMATS[name]


def _list(names: Iterable[str]) -> str:
    return f"There are {', '.join(sorted(names))}."
