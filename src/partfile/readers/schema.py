"""``partfile.read_schema``: the schema of the rows of a tree, by the checkpoints of its sinks."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, NotFound, SnapshotError, StoreError
from partfile.sink.newest_state import newest_state
from partfile.sink.schema import schema_in, united
from partfile.sink.settings import checkpoint_url_of
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.registry import open_store, options_for

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import JsonValue

    from partfile.sink.states import RowSchema


logger = logging.getLogger("partfile")
_NO_COLUMNS = pa.schema([])


def read_schema(
    path: str | os.PathLike[str],
    *,
    uid: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> pa.Schema:
    """The schema of the rows that sinks have written below a base path, by their newest checkpoints.

    Columns of directories are among them. Where several sinks write, it has the columns of all. ``read(path,
    schema=read_schema(path))`` looks into no file before the scan.

    Args:
        path: The base path of the sink.
        uid: The sink; None takes all.
        storage_options: What the store's client needs; none for local files.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base.

    Raises:
        NotFound: There is no checkpoint of such a sink, or none that has a schema.
        ConfigError: Rows of one column have types that no type holds; names the columns.
        SnapshotCorrupt: A newest checkpoint cannot be read.
    """
    return typed_rows(path, uid=uid, storage_options=storage_options, checkpoint_dir=checkpoint_dir)[0]


def typed_rows(
    path: str | os.PathLike[str],
    *,
    uid: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> tuple[pa.Schema, Mapping[str, JsonValue]]:
    """The schema of the rows and the format spec of their files; arguments and errors as of ``read_schema``."""
    held = row_schema(path, uid=uid, storage_options=storage_options, checkpoint_dir=checkpoint_dir)
    if held.mixed:
        raise ConfigError(
            f"the rows below {str(path)!r} have values of several types in {', '.join(map(repr, held.mixed))}",
            hint="Read the files before and after the change by themselves, each with schema=.",
            path=str(path),
        )
    return schema_in(held), held.format


def row_schema(
    path: str | os.PathLike[str],
    *,
    uid: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> RowSchema:
    """What the newest checkpoints hold of the schema of the rows; arguments and errors as of ``read_schema``."""
    base = str(path)
    url = checkpoint_url_of(base, None if checkpoint_dir is None else str(checkpoint_dir))
    options = options_for(url, base, storage_options or {})
    try:
        with open_store(url, options, create_base=False) as store:
            jobs = sorted(store.list_names(""))
            chosen = jobs if uid is None else [job for job in jobs if uid in {job, job.partition("~")[0]}]
            found = united(schemas_held(CheckpointStorage(store, job) for job in chosen))
    except NotFound as error:
        raise NotFound(
            f"there are no checkpoints at {url!r}", hint="Pass checkpoint_dir= as the sink has it.", path=url
        ) from error
    if found is None:
        of = "a sink" if uid is None else f"sink {uid!r}"
        raise NotFound(
            f"no checkpoint of {of} at {url!r} has the schema of its rows",
            hint="It is there from the first checkpoint with rows on.",
            path=url,
        )
    return found


def schemas_held(storages: Iterable[CheckpointStorage]) -> Iterator[RowSchema]:
    """What the newest checkpoint of each log holds, where it holds one; raises SnapshotCorrupt."""
    for storage in storages:
        held = newest_state(storage)
        if held is not None and held.state.position.row_schema is not None:
            yield held.state.position.row_schema


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """What checkpoints tell a reader of a tree; nothing where there are none."""

    in_files: pa.Schema = _NO_COLUMNS
    """Columns of files that have this type in every row."""
    in_path: pa.Schema = _NO_COLUMNS
    """Likewise of directories, as far as their names say a value of the type."""
    format: Mapping[str, JsonValue] = field(default_factory=dict)
    """Format spec of the files; empty where it is not known, or rows of several shapes are in them."""


def known_columns(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> KnownColumns:
    """What the newest checkpoints tell of the columns below a base path.

    A tree can be read without: what cannot be found out is logged, and no error.

    Args:
        path: The base path of the sink.
        storage_options: What the store's client needs.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base.
    """
    try:
        held = row_schema(path, storage_options=storage_options, checkpoint_dir=checkpoint_dir)
        schema = schema_in(held)
    except NotFound as error:
        logger.debug("types are told by the files alone: %s", error)
        return KnownColumns()
    except (StoreError, SnapshotError, ConfigError) as error:
        logger.warning("%s: types of columns are guessed, for no checkpoint tells them: %s", path, error)
        return KnownColumns()
    sure = [column for column in schema if column.name not in held.mixed]
    in_path = [column for column in sure if column.name in held.path_columns]
    return KnownColumns(
        pa.schema([column for column in sure if column.name not in held.path_columns]),
        pa.schema([column for column in in_path if _is_told_by_directories(column.type)]),
        {} if held.mixed else held.format,
    )


def _is_told_by_directories(kind: pa.DataType) -> bool:
    """Whether pyarrow makes values of this type of the names of directories. Of an instant they do not say the zone."""
    if types.is_timestamp(kind):
        return kind.tz is None
    return any(is_kind(kind) for is_kind in (types.is_string, types.is_integer, types.is_boolean, types.is_date32))
