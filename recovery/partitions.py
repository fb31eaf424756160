"""Partition columns in the ``name=value`` directories of a tree, as Hive and Spark escape them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_names(path: str) -> tuple[str, ...]:
    """The columns that the directories of a path make."""
    return tuple(unquote(name) for name, _ in _pairs(path))


def partition_values(path: str) -> list[str | None]:
    """The values in the directories of a path, in the order of ``partition_names``."""
    return [None if value == _NULL else unquote(value) for _, value in _pairs(path)]


def partition_shape(paths: Sequence[str]) -> tuple[str, ...]:
    """The columns that the directories of every one of the paths make.

    Raises:
        ConfigError: Some directories are ``name=value`` and others are not, or their names differ.
    """
    shapes: dict[tuple[str, ...], str] = {}
    for path in paths:
        names = partition_names(path)
        if names and len(names) < path.count("/"):
            raise ConfigError(
                f"of the directories of {path!r} some are name=value and others are not",
                hint="Spark makes partition columns only where all are; read each part of the tree by itself.",
                path=path,
            )
        shapes.setdefault(names, path)
    if len(shapes) > 1:
        one, other, *_ = shapes.values()
        raise ConfigError(
            f"directories are of several shapes, as those of {one!r} and {other!r}",
            hint="Spark makes partition columns only where all are alike; read each part of the tree by itself.",
        )
    return next(iter(shapes), ())


def _pairs(path: str) -> list[tuple[str, str]]:
    segments = [segment.partition("=") for segment in path.split("/")[:-1]]
    return [(name, value) for name, equals, value in segments if equals]
