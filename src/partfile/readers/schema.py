"""``partfile.read_schema``: the schema of the rows of a tree, by the checkpoints of its sinks."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, NotFound, SnapshotError, StoreError
from partfile.readers.files import TEXT_COLUMN, directory_text, path_text
from partfile.sink.newest_state import newest_states
from partfile.sink.schema import schema_in, united
from partfile.sink.settings import checkpoint_url_of
from partfile.stores.options import check_mapping
from partfile.stores.registry import is_same_place, open_store, options_for

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from partfile.sink.newest_state import NewestState
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

    Columns of directories are among them; a key whose type their names do not tell, such as an instant, is text. Where
    several sinks write, it has the columns of all. ``read(path, schema=read_schema(path))`` looks into no file before
    the scan.

    Args:
        path: The base path of the sink.
        uid: The sink; None takes all.
        storage_options: What the store's client needs; none for local files.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base.

    Raises:
        NotFound: There is no checkpoint of such a sink, or none that has a schema.
        ConfigError: Rows of one column have types that no type holds; names the columns.
        SnapshotCorrupt: A newest checkpoint cannot be read.
        StoreError: The store cannot be reached, or refuses.
    """
    held = row_schema(path, uid=uid, storage_options=storage_options, checkpoint_dir=checkpoint_dir)
    _check_not_mixed(held, path)
    schema = schema_in(held)
    if held.format.get("format") == "text":
        # The lines are called so by every reader, whatever the column was called.
        schema = pa.schema(
            [field if field.name in held.path_columns else field.with_name(TEXT_COLUMN) for field in schema]
        )
    return pa.schema(
        [
            field
            if field.name not in held.path_columns or is_told_by_directories(field.type)
            else field.with_type(pa.string())
            for field in schema
        ]
    )


def typed_rows(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> RowSchema:
    """What an engine needs that goes by the places of columns in CSV; arguments as of ``read_schema``.

    Raises:
        NotFound, SnapshotCorrupt, StoreError: As of ``read_schema``.
        ConfigError: Rows of one column have types that no type holds, or files of CSV differ in the places of columns
            or in their options.
    """
    held = row_schema(path, storage_options=storage_options, checkpoint_dir=checkpoint_dir)
    _check_not_mixed(held, path)
    check_one_layout(held, path)
    return held


def _check_not_mixed(held: RowSchema, path: object) -> None:
    if held.mixed:
        raise ConfigError(
            f"the rows below {str(path)!r} have values of several types in {', '.join(map(repr, held.mixed))}",
            hint=f"Read such a column as text: partfile.read(PATH, schema={{{held.mixed[0]!r}: 'string', ...}}); lines "
            "of JSON by partfile.read(PATH, format='text').",
            path=str(path),
        )


def check_one_layout(held: RowSchema, path: object) -> None:
    """Refuse CSV that was written in several ways, where a reader goes by the places of columns.

    Raises:
        ConfigError: Names the tree, and what to do.
    """
    if held.is_shifted or not has_options(held):
        what = "with several options" if not has_options(held) else "with columns at several places"
        raise ConfigError(
            f"files of CSV below {str(path)!r} have been written {what}",
            hint=(
                "Read the files before and after the change by themselves, each with its own schema: "
                "spark.read.schema(SCHEMA).csv(FILES)"
            ),
            path=str(path),
        )


def kept_in_csv(column: str) -> ConfigError:
    """The error for a column that files of CSV and their directories have both: Spark takes it out of the former."""
    return ConfigError(
        f"{column!r} is in files of CSV and in their directories, and Spark would read the columns behind it wrongly",
        hint="Read the tree in plain Python: partfile.read(PATH)",
    )


def has_options(held: RowSchema) -> bool:
    """Whether it is known with which options files of CSV were written; true for every other format."""
    return held.format.get("format") != "csv" or "header" in held.format


def row_schema(
    path: str | os.PathLike[str],
    *,
    uid: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> RowSchema:
    """What the newest checkpoints hold of the schema of the rows; arguments and errors as of ``read_schema``."""
    held = _held(path, uid, storage_options, checkpoint_dir)
    if held is None:
        url = checkpoint_url_of(path_text(path), directory_text(checkpoint_dir))
        raise NotFound(
            f"no checkpoint at {url!r} has the schema of its rows",
            hint="It is there from the first checkpoint with rows on. See what there is: partfile status PATH",
            path=url,
        )
    return held


def _held(
    path: str | os.PathLike[str],
    uid: str | None,
    storage_options: Mapping[str, object] | None,
    checkpoint_dir: str | os.PathLike[str] | None,
) -> RowSchema | None:
    """The same; None where there are checkpoints and none has the schema of rows."""
    base = path_text(path)
    check_mapping(storage_options)
    url = checkpoint_url_of(base, directory_text(checkpoint_dir))
    options = options_for(url, base, storage_options or {})
    try:
        with open_store(url, options, create_base=False) as store:
            jobs = sorted(store.list_names(""))
            chosen = jobs if uid is None else [job for job in jobs if uid in {job, job.partition("~")[0]}]
            states = list(newest_states(store, chosen))
    except ConfigError:
        # Which names a base that is a file.
        open_store(base, options_for(base, base, storage_options or {}), create_base=False).close()
        raise
    except NotFound as error:
        # Which names a base that is not there.
        open_store(base, options_for(base, base, storage_options or {}), create_base=False).close()
        raise NotFound(
            f"there are no checkpoints at {url!r}",
            hint="Say where the sink keeps its checkpoints: checkpoint_dir=DIRECTORY",
            path=url,
        ) from error
    if uid is not None and not chosen:
        raise NotFound(f"no sink {uid!r} has checkpoints at {url!r}", hint=f"There are: {', '.join(jobs)}.", path=url)
    return united(schemas_held(states, base, storage_options or {}))


def schemas_held(
    states: Iterable[NewestState], base: str, storage_options: Mapping[str, object]
) -> Iterator[RowSchema]:
    """What each state holds, where it holds one.

    Args:
        states: Of all sinks whose checkpoints are in one directory.
        base: Where the rows are. A sink of another base says nothing of them.
        storage_options: What the client of its store needs.

    Raises:
        NotFound: All are of another base.
    """
    elsewhere, is_ours = None, False
    for held in states:
        position = held.state.position
        if position.base is not None and not is_same_place(position.base, base, storage_options):
            elsewhere = position.base
            continue
        is_ours = True
        if position.row_schema is not None:
            yield position.row_schema
    if elsewhere is not None and not is_ours:
        raise NotFound(
            f"the checkpoints are of the base {elsewhere!r}, not of {base!r}",
            hint=(
                "Name the directory that the sink of this base has: checkpoint_dir=DIRECTORY. If the base was moved, "
                f"tell the sink first: partfile recover {shlex.quote(base)} --checkpoint-dir DIRECTORY --moved-from "
                f"{shlex.quote(elsewhere)}"
            ),
            path=base,
        )


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """What checkpoints tell a reader of a tree; nothing where there are none."""

    columns: pa.Schema = _NO_COLUMNS
    """Columns that have this type in every row."""
    held: RowSchema | None = None
    """All that the checkpoints hold."""


def known_columns(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> KnownColumns:
    """What the newest checkpoints tell of the columns below a base path.

    A tree can be read without: what cannot be found out is logged, and no error; but for a directory of checkpoints
    that was named, and is not there, or of another base.

    Args:
        path: The base path of the sink.
        storage_options: What the store's client needs.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base.
    """
    try:
        held = _held(path, None, storage_options, checkpoint_dir)
        if held is None:
            return KnownColumns()
        schema = schema_in(held)
    except NotFound as error:
        if checkpoint_dir is not None:
            raise
        logger.debug("types are told by the files alone: %s", error)
        return KnownColumns()
    except (StoreError, SnapshotError, ConfigError) as error:
        logger.warning("%s: types of columns are guessed, for no checkpoint tells them: %s", path, error)
        return KnownColumns()
    return KnownColumns(pa.schema([column for column in schema if column.name not in held.mixed]), held)


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type of a directory's key to an engine: of an instant, whose zone is not said, the text."""
    return pa.string() if types.is_timestamp(kind) and kind.tz is not None else kind


def is_told_by_directories(kind: pa.DataType) -> bool:
    """Whether pyarrow makes values of this type of the names of directories. Of an instant they do not say the zone."""
    if types.is_timestamp(kind):
        return kind.tz is None
    return any(is_kind(kind) for is_kind in (types.is_string, types.is_integer, types.is_boolean, types.is_date32))
