"""The life of a sink on S3 beyond single batches: kept parts, savepoints, two coordinators, a restart of the server."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import Fenced, RecoveryRefused
from partfile.stores.registry import open_store
from partfile.stores.s3.store import S3Store
from support.s3.life import MIB, SMALL, Stream, options_of, store_options
from support.sinks.distinct_life import live_and_check, take_over_and_check

if TYPE_CHECKING:
    from support.s3.server import S3Server


def stream_on(server: S3Server, row_bytes: int = 10) -> Stream:
    """Two parts that stay open, 12 rows."""
    return Stream(f"s3://{server.bucket()}/base", options_of(server), row_bytes=row_bytes)


@pytest.mark.drawn
@pytest.mark.parametrize("row_bytes", [10, 3 * MIB])
def test_parts_that_a_clean_stop_kept_are_gone_on_with(moto: S3Server, row_bytes: int) -> None:
    """With on_stop="keep" the next run claims and extends them, by numbers of upload parts of its own."""
    stream = stream_on(moto, row_bytes=row_bytes)
    for rows in (4, 8, 12):
        stream._replace(rows=rows).run_to_the_end(on_stop="keep")
        assert stream.finished() == {}
    stream.run_to_the_end()
    stream.assert_exactly_once()
    assert len(stream.finished()) == 2


def test_a_crash_leaves_nothing_out_and_nothing_twice(s3_server: S3Server) -> None:
    """A restore publishes open parts from their handles; what was sent after the checkpoint is in no file."""
    stream = stream_on(s3_server, row_bytes=3 * MIB)
    crashed = stream.sink().local().open()
    crashed.write(stream.batch(0, 6), position=6)
    crashed.checkpoint()
    crashed.write(stream.batch(6, 6), position=12)
    crashed.close()
    stream._replace(rows=6).run_to_the_end()
    assert stream.rows_seen() == Counter(range(6))
    stream.run_to_the_end()
    stream.assert_exactly_once()


def test_distinct_rows(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys lie beside the checkpoints on each server, and are mapped from copies on this host."""
    base, options = f"s3://{s3_server.bucket()}/base", store_options(s3_server)
    live_and_check(base, options, monkeypatch, lambda directory: names_in(base, options, directory))


@pytest.mark.fault("D9")
def test_of_two_drivers_with_keys_the_second_fences_the_first(s3_server: S3Server) -> None:
    """Though it has merged and deleted a run that the first one needs, and each key is there once."""
    base, options = f"s3://{s3_server.bucket()}/base", store_options(s3_server)
    take_over_and_check(base, options, lambda directory: names_in(base, options, directory))


def names_in(base: str, options: dict[str, object], directory: str) -> list[str]:
    """The names in a directory below a base."""
    with open_store(base, options) as store:
        return store.list_names(directory)


def test_of_two_coordinators_one_goes_on(s3_server: S3Server) -> None:
    """A coordinator that is fenced while it has parts open adds nothing, on servers without preconditions as well."""
    stream = stream_on(s3_server)
    old = stream.sink().local().open()
    old.write(stream.batch(0, 4), position=4)
    old.checkpoint()
    old.write(stream.batch(4, 4), position=8)
    stream.run_to_the_end()
    with pytest.raises(Fenced):
        old.checkpoint()
    stream.assert_exactly_once()


def test_a_savepoint_on_s3_is_taken_listed_and_restored(moto: S3Server) -> None:
    """A savepoint is files like any other; it is restored onto another base, and refused where the sink went on."""
    bucket, options = moto.bucket(), store_options(moto)
    stream = Stream(f"s3://{bucket}/base", options_of(moto))
    fixed: dict[str, Any] = {
        "uid": "life",
        "format": "text",
        "bucketer": pf.HiveBucketer("bucket"),
        "storage_options": options,
    }
    with pf.FileSink(stream.base, **fixed).local() as out:
        out.write(stream.batch(0, 5), position=5)
        location = out.savepoint(f"s3://{bucket}/savepoints")
        out.write(stream.batch(5, 7), position=12)
    assert len(pf.list_savepoints(f"s3://{bucket}/savepoints", options)) == 1
    stream.assert_exactly_once()
    with pytest.raises(RecoveryRefused):
        pf.FileSink(stream.base, restore_from=location, **fixed).local().open()
    with pf.FileSink(f"s3://{bucket}/other", restore_from=location, **fixed).local() as out:
        assert out.position == 5


@pytest.mark.parametrize("kind", ["radosgw"])
def test_a_server_that_restarts_is_waited_for(request: pytest.FixtureRequest, kind: str) -> None:
    """Killed between two checkpoints, with uploads open, it finds them again; nothing is lost or doubled."""
    server: S3Server = request.getfixturevalue(kind)
    stream = stream_on(server, row_bytes=3 * MIB)
    with stream.sink().local() as out:
        for first in range(0, 12, 3):
            out.write(stream.batch(first, 3), position=first + 3)
            server.kill()
            server.mend()
            out.checkpoint()
    stream.assert_exactly_once()


def test_small_parts_roll_and_are_put_as_they_are(s3_server: S3Server) -> None:
    """Parts of two rows each begin no upload, on any server."""
    stream = stream_on(s3_server)._replace(rolling=SMALL)
    stream.run_to_the_end()
    stream.assert_exactly_once()
    with S3Store(stream.base, stream.options) as store:
        assert store.list_names("_partfile/_sides") == []
