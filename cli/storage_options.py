"""The storage options of a command, from ``--storage-option`` and a file; their values are shown nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_BYTES = 1 << 20


def storage_options_of(pairs: Sequence[str], file: str | None) -> dict[str, object]:
    """What the client of the store is opened with; a pair goes before the file.

    Args:
        pairs: ``NAME=VALUE`` each; values are text.
        file: Path of a JSON object, whose values may be of any type.

    Raises:
        ConfigError: A pair has no ``=``, or the file cannot be read; no value is shown.
    """
    options = {} if file is None else _read(file)
    for place, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--storage-option number {place} is not of the form NAME=VALUE; it is not shown, for it may be secret",
                hint="Write for instance --storage-option region=eu-west-1.",
            )
        options[name] = value
    return options


def _read(file: str) -> dict[str, object]:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"--storage-options-file {file!r} cannot be read: {error.strerror}",
            hint="Name a file on this host, and check that you may read it.",
            path=file,
        ) from None
    try:
        found = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"--storage-options-file {file!r} is no JSON object",
            hint='Write for instance {"region": "eu-west-1"}.',
            path=file,
        )
    return found
