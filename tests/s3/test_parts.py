"""Parts on S3: what is sent, who may extend, attempts, zombies and rivals."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import CommitConflict, ConfigError, Fenced, LeaseUnavailable, NotApplied, PartfileError
from partfile.stores.s3.client import CHANGING_CALLS
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import ActAt, Recorder
from partfile.testing.store import new_part
from support.s3.life import (
    MIB,
    Stream,
    finished_size,
    options_of,
    staging_of,
    store_options,
    watched,
    written_in_batches,
    written_open,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from support.s3.server import S3Server


# Parts on S3 from the inside: what is sent, how often, and who may extend.

BATCHES = 20


@pytest.fixture
def s3_server(moto: S3Server) -> S3Server:
    """The server that honours every precondition; what others do is the contract's."""
    return moto


@pytest.fixture
def store(s3_base: str, s3_options: S3Options) -> Iterator[S3Store]:
    """The store under test."""
    with S3Store(s3_base, s3_options) as store:
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("batch_bytes", [MIB, MIB + 12345, 3 * MIB, 5 * MIB, 100])
def test_a_part_of_many_batches(
    s3_base: str, s3_options: S3Options, batch_bytes: int, resumes: bool, rng: random.Random
) -> None:
    """Each byte is sent twice at most, at most 3 requests a batch plus 5 suffice, and the file is what was written."""
    batches = [rng.randbytes(batch_bytes) for _ in range(BATCHES)]
    recorder = Recorder()
    with watched(s3_base, s3_options, recorder) as store:
        assert store.capabilities.append
        recorder.calls.clear()
        handle = written_in_batches(store, batches, resumes=resumes)
        store.publish(handle, "auto")
    names = recorder.names
    sent = sum(len(one) for call in recorder.calls for one in call.arguments if isinstance(one, bytes))
    assert sent <= 2 * BATCHES * batch_bytes
    assert len(names) <= 3 * BATCHES + 5, names
    with S3Store(s3_base, s3_options) as store:
        assert store.read_file(handle.path_of(handle.name), 1 << 30) == b"".join(batches)
        for left in ("_partfile/_sides", "_partfile/_claims"):
            assert store.list_names(left) == []


def test_parts_that_lived_in_one_batch_take_three_requests_each(s3_base: str, s3_options: S3Options) -> None:
    """A small part is an upload of one upload part; what could be left of many goes by one request."""
    recorder = Recorder()
    with watched(s3_base, s3_options, recorder) as store:
        handles = [written_in_batches(store, [b"rows"], resumes=False) for _ in range(3)]
        handles = [handle.model_copy(update={"name": f"part-{n}"}) for n, handle in enumerate(handles)]
        for handle in handles:
            store.publish(handle, "auto")
        assert sorted(recorder.names) == ["complete_upload"] * 3 + ["create_upload"] * 3 + ["upload_part"] * 3
        recorder.calls.clear()
    assert recorder.names == ["delete_many"]
    (keys,) = recorder.calls[0].arguments
    assert isinstance(keys, list)
    assert len(keys) == 3


def test_no_deletion_names_a_key_twice(s3_base: str, s3_options: S3Options) -> None:
    """Radosgw 16.2 crashes over it; a part that is published again has been left once."""
    recorder = Recorder(["delete_many"])
    with watched(s3_base, s3_options, recorder) as store:
        handle = written_in_batches(store, [b"a", b"b"], resumes=True)
        for _ in range(3):
            store.publish(handle, "auto")
    ((keys,),) = (call.arguments for call in recorder.calls)
    assert isinstance(keys, list)
    assert len(keys) == len(set(keys)) == 3


def test_a_part_whose_key_is_too_long_is_not_begun(store: S3Store) -> None:
    """Found out before rows are promised, not when the part is published."""
    part = new_part(bucket="/".join(["b" * 200] * 5))
    with pytest.raises(ConfigError, match="1024"):
        store.create(part)
    with pytest.raises(ConfigError, match="1024"):
        store.check_path(part.path_of(part.name))
    store.check_path("b/" + part.name)


def test_a_part_written_at_once_is_sent_once(s3_base: str, s3_options: S3Options, rng: random.Random) -> None:
    """What makes up upload parts within one batch is sent as such, the rest as the last one when it is closed."""
    data = rng.randbytes(21 * MIB)
    recorder = Recorder(CHANGING_CALLS)
    with watched(s3_base, s3_options, recorder) as store:
        handle = written_in_batches(store, [data], resumes=False)
        store.publish(handle, "auto")
        assert recorder.names.count("put") == 0
        assert [piece.size_bytes // MIB for piece in staging_of(handle).pieces] == [8, 8, 5]
        assert store.read_file(handle.path_of(handle.name), len(data)) == data


def test_an_upload_begins_with_the_first_five_mebibytes(store: S3Store) -> None:
    """Small parts begin no upload, which would be left behind by each task that dies."""
    stream = store.create(new_part())
    stream.write(bytes(5 * MIB - 1))
    handle = stream.persist()
    assert staging_of(handle).upload is None
    stream.write(b"x")
    staging = staging_of(stream.persist())
    assert staging.upload is not None
    assert [piece.size_bytes for piece in staging.pieces] == [5 * MIB]
    assert (len(staging.sides), len(staging.spent)) == (0, 1)
    stream.close()


def test_numbers_of_upload_parts_belong_to_who_won_the_claim(store: S3Store) -> None:
    """A zombie that goes on from its own persist cannot send a number that who resumed its handle may send."""
    zombie = store.create(new_part())
    zombie.write(bytes(6 * MIB))
    handle = zombie.persist()
    resumed = store.resume(handle)
    with pytest.raises(LeaseUnavailable):
        zombie.write(bytes(8 * MIB))
    resumed.write(b"y" * 6 * MIB)
    closed = resumed.close_for_commit()
    assert [piece.number for piece in staging_of(closed).pieces] == [1, 2]
    store.publish(closed, "auto")
    assert finished_size(store, closed) == 12 * MIB


def test_memory_is_bounded_over_all_open_parts(s3_base: str, s3_options: S3Options) -> None:
    """Beyond the limit parts put what they hold beside themselves, and still end as one file each."""
    options = S3Options.model_validate({**s3_options.model_dump(), "max_buffered_bytes": 4 * MIB})
    with S3Store(s3_base, options) as store:
        parts = [new_part(name=f"part-{n}") for n in range(8)]
        streams = [store.create(part) for part in parts]
        for _ in range(4):
            for stream in streams:
                stream.write(bytes(MIB))
                assert store._budgets.get()._held_bytes <= 9 * MIB
        for part, stream in zip(parts, streams, strict=True):
            store.publish(stream.close_for_commit(), "auto")
            assert finished_size(store, part) == 4 * MIB


def test_a_part_that_failed_is_lost_to_its_stream(s3_base: str, s3_options: S3Options) -> None:
    """After a failed request nothing of the stream is vouched for any more."""

    def fail() -> None:
        raise NotApplied("refused")

    with watched(s3_base, s3_options, ActAt(1, fail, only={"put"})) as store:
        stream = store.create(new_part())
        stream.write(b"x")
        for _ in range(2):
            with pytest.raises(NotApplied):
                stream.persist()
        stream.close()
        assert stream.handle.valid_length == 0


def test_a_full_part_is_not_extended(store: S3Store) -> None:
    """Before S3 runs out of numbers, or the handle grows too long, a new part is begun."""
    handle = written_open(store, [b"x"])
    side = staging_of(handle).sides[0].model_dump()
    with pytest.raises(LeaseUnavailable, match="side objects"):
        store.resume(handle.model_copy(update={"valid_length": 1000, "staging": {"claims": 0, "sides": [side] * 1000}}))
    pieces = [{"number": n, "etag": "e", "size_bytes": 1} for n in range(1, 9001)]
    with pytest.raises(LeaseUnavailable, match="upload parts"):
        store.resume(
            handle.model_copy(update={"valid_length": 9000, "staging": {"claims": 0, "upload": "u", "pieces": pieces}})
        )


# Attempts, zombies and rivals on S3, which has no leases; see docs/adr/0020-s3-parts.md.

SIZES = [100, 6 * MIB]
"""A part of side objects, and one with an upload."""


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.fault("D3")
def test_a_zombie_that_goes_on_after_everything(s3_base: str, s3_options: S3Options, size: int) -> None:
    """D3: whenever it persists, nothing that it adds is in a finished file, and no finished file changes."""
    store = S3Store(s3_base, s3_options)
    stream = store.create(new_part())
    stream.write(bytes(size))
    claimed = stream.persist()
    # The server answers 500 where others say that the upload is gone, and is asked again until the deadline.
    zombie = S3Store(s3_base, s3_options.model_copy(update={"call_timeout_s": 10.0})).resume(claimed)
    handle = store.prepare(claimed)
    store.publish(handle, "auto")
    before = [(file.path, file.size, file.modified_at_ms) for file in store.list()]
    for more in (10, 6 * MIB):
        # It may be told so, or not.
        with suppress(PartfileError):
            zombie.write(b"z" * more)
            zombie.persist()
    zombie.close()
    assert [(file.path, file.size, file.modified_at_ms) for file in store.list()] == before


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.fault("D9", "D10")
def test_a_fenced_coordinator_that_sleeps_before_it_publishes(moto: S3Server) -> None:
    """D9, D10: it wakes up after another run has published the same part, finds it its own, and is fenced after."""
    stream = Stream(f"s3://{moto.bucket()}/base", options_of(moto))
    with S3Store(stream.base, stream.options) as store:
        # What the server does is asked once a process, by completing uploads too.
        assert store.capabilities.no_replace
    act = ActAt(1, stream.run_to_the_end, only={"complete_upload"})
    slow = stream.sink(act).local().open()
    slow.write(stream.batch(0, 12), position=12)
    slow.checkpoint()
    with suppress(Fenced):
        slow.finish()
    stream.assert_exactly_once()
    seen = stream.finished()
    stream.run_to_the_end()
    assert stream.finished() == seen


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.fault("D10")
def test_a_publication_that_arrives_after_another_part_took_the_name(
    s3_base: str, s3_options: S3Options, store: S3Store, size: int
) -> None:
    """D10: between its last look and its request a foreign file appears: it is not replaced."""
    handle, rival = written_open(store, [b"m" * size]), written_open(store, [b"r" * size])
    act = ActAt(1, lambda: store.publish(rival, "auto"), only={"complete_upload"})
    with watched(s3_base, s3_options, act) as late, pytest.raises(CommitConflict):
        late.publish(handle, "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 24) == b"r" * size


@pytest.mark.slow
@pytest.mark.fault("D11", "D12")
def test_two_sinks_on_one_base(moto: S3Server) -> None:
    """D11, D12: two uids that start at the same time never meet: not in names, not in what they delete."""
    base = f"s3://{moto.bucket()}/base"
    options: dict[str, Any] = {"format": "text", "storage_options": store_options(moto), "on_used_base": "accept"}
    sinks = [pf.FileSink(base, uid=uid, **options) for uid in ("a", "b")]
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
