"""Attempts, zombies and rivals on S3, which has no leases; see docs/adr/0020-s3-parts.md."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from s3_life import MIB, Stream
from s3_part_support import staging_of, watched, written_open
from s3_store_support import options_of, store_options

import partfile as pf
from partfile.errors import CommitConflict, Fenced, LeaseUnavailable, PartfileError
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import ActAt
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_server import S3Server

    from partfile.stores.s3.options import S3Options

SIZES = [100, 6 * MIB]
"""A part of side objects, and one with an upload."""


@pytest.fixture
def s3_server(moto: S3Server) -> S3Server:
    """The server that honours every precondition; the contract suite has the same on all servers."""
    return moto


@pytest.fixture
def store(s3_base: str, s3_options: S3Options) -> Iterator[S3Store]:
    """The store under test."""
    with S3Store(s3_base, s3_options) as store:
        yield store


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.fault("D1", "D2", "D4")
def test_two_attempts_with_number_0_never_mix(store: S3Store, size: int) -> None:
    """D1, D2, D4: both finish; the one whose report was accepted is published, byte for byte, the other nowhere."""
    winner = written_open(store, [b"w" * size, b"w" * 50])
    loser = written_open(store, [b"l" * size, b"l" * 50])
    assert not {side.name for side in staging_of(winner).sides} & {side.name for side in staging_of(loser).sides}
    store.publish(winner, "auto")
    assert store.read_file(winner.path_of(winner.name), 1 << 24) == b"w" * (size + 50)
    with pytest.raises(CommitConflict):
        store.publish(loser, "auto")
    assert store.discard(loser)
    assert store.read_file(winner.path_of(winner.name), 1 << 24) == b"w" * (size + 50)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.fault("D2")
def test_two_attempts_that_resume_one_part(store: S3Store, size: int) -> None:
    """D2: one extends it, the other begins a part of its own; a part is never made of the bytes of both."""
    handle = written_open(store, [bytes(size)])
    first = store.resume(handle)
    with pytest.raises(LeaseUnavailable):
        store.resume(handle)
    first.write(b"first")
    store.publish(first.close_for_commit(), "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 24) == bytes(size) + b"first"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.fault("D3")
def test_a_zombie_that_goes_on_after_everything(s3_base: str, s3_options: S3Options, size: int) -> None:
    """D3: whenever it persists, nothing that it adds is in a finished file, and no finished file changes."""
    # The server answers 500 where others say that the upload is gone, and is asked again.
    store = S3Store(s3_base, s3_options.model_copy(update={"call_timeout_s": 10.0}))
    zombie = store.create(new_part())
    zombie.write(bytes(size))
    handle = zombie.persist()
    store.publish(handle, "auto")
    before = [(file.path, file.size, file.modified_at_ms) for file in store.list()]
    for more in (10, 6 * MIB):
        # It may be told so, or not.
        with suppress(PartfileError):
            zombie.write(b"z" * more)
            zombie.persist()
    zombie.close()
    assert [(file.path, file.size, file.modified_at_ms) for file in store.list()] == before


@pytest.mark.fault("D5", "D6")
def test_a_batch_that_is_written_again_with_other_rows(moto: S3Server) -> None:
    """D5, D6: what a crash left of the first try is in no file, though it was durable and had more rows."""
    stream = Stream(f"s3://{moto.bucket()}/base", options_of(moto), row_bytes=3 * MIB)
    first = stream.sink().local().open()
    first.write(stream.batch(0, 4), position=4)
    first.checkpoint()
    first.write(stream.batch(4, 8), position=12)
    first.close()
    second = stream.sink().local().open()
    assert second.position == 4
    for row in range(4, 12):
        second.write(stream.batch(row, 1), position=row + 1)
    second.finish()
    stream.assert_exactly_once()


@pytest.mark.fault("D9", "D10")
def test_a_fenced_coordinator_that_sleeps_before_it_publishes(moto: S3Server) -> None:
    """D9, D10: it wakes up after another run has published the same part, finds it its own, and is fenced after."""
    stream = Stream(f"s3://{moto.bucket()}/base", options_of(moto))
    act = ActAt(1, stream.run_to_the_end, only={"put_finished"})
    slow = stream.sink(act).local().open()
    slow.write(stream.batch(0, 12), position=12)
    slow.checkpoint()
    with suppress(Fenced):
        slow.finish()
    stream.assert_exactly_once()
    seen = stream.finished()
    stream.run_to_the_end()
    assert stream.finished() == seen


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.fault("D10")
def test_a_publication_that_arrives_after_another_part_took_the_name(
    s3_base: str, s3_options: S3Options, store: S3Store, size: int
) -> None:
    """D10: between its last look and its request somebody else's file appears: it is not replaced."""
    handle, rival = written_open(store, [b"m" * size]), written_open(store, [b"r" * size])
    call = "put_finished" if size < MIB else "complete_upload"
    act = ActAt(1, lambda: store.publish(rival, "auto"), only={call})
    with watched(s3_base, s3_options, act) as late, pytest.raises(CommitConflict):
        late.publish(handle, "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 24) == b"r" * size


@pytest.mark.fault("D11", "D12")
def test_two_sinks_on_one_base(moto: S3Server) -> None:
    """D11, D12: two uids that start at the same time never meet: not in names, not in what they delete."""
    base = f"s3://{moto.bucket()}/base"
    sinks = [pf.FileSink(base, uid=uid, format="text", storage_options=store_options(moto)) for uid in ("a", "b")]
    outs = [sink.local().open() for sink in sinks]
    for _ in range(4):
        for number, out in enumerate(outs):
            out.write(pa.RecordBatch.from_pydict({"row": [f"of sink {number}"]}))
            out.checkpoint()
    outs[0].close()
    outs[1].finish()
    with sinks[0].local():
        pass
    with S3Store(base, options_of(moto)) as store:
        found = [store.read_file(file.path, 1 << 20).split() for file in store.list()]
    assert sorted(len(rows) // 3 for rows in found) == [4, 4]
    assert all(len({*rows[2::3]}) == 1 for rows in found)
