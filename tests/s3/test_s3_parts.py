"""Parts on S3 from the inside: what is sent, how often, who may extend, and what decides after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_life import MIB

from partfile.filesystems.contract_base import new_part
from partfile.filesystems.errors import (
    CommitConflict,
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    PartMissing,
    SnapshotCorrupt,
    StoreError,
)
from partfile.filesystems.faults import ActAt, Recorder, intercept
from partfile.filesystems.s3 import S3Store
from partfile.filesystems.s3_calls import CHANGING_CALLS, S3Calls
from partfile.filesystems.s3_options import S3Options
from partfile.filesystems.s3_staging import PART_METADATA, TAIL_NUMBER, S3Staging, part_id
from partfile.filesystems.s3_url import S3Url

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from s3_server import S3Server

    from partfile.filesystems.faults import Interceptor
    from partfile.filesystems.port import PartHandle

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


def watched(base: str, options: S3Options, interceptor: Interceptor) -> S3Store:
    """A store whose requests an interceptor sees."""
    return S3Store(base, options, calls=intercept(S3Calls(S3Url.of(base).bucket, options), interceptor))


def staging_of(handle: PartHandle) -> S3Staging:
    """What a handle is made of."""
    staging = S3Staging.of(handle)
    assert staging is not None
    return staging


def written_in_batches(store: S3Store, batches: list[bytes], *, resumes: bool) -> PartHandle:
    """A part that gets one batch a checkpoint, in one stream or each in a stream of its own, and is closed."""
    stream = store.create(new_part())
    for data in batches[:-1]:
        stream.write(data)
        handle = stream.persist()
        if resumes:
            stream.close()
            stream = store.resume(handle)
    stream.write(batches[-1])
    return stream.close_for_commit()


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
    """A small part is a side object, a GET and a PUT; what is left of many goes by one request."""
    recorder = Recorder()
    with watched(s3_base, s3_options, recorder) as store:
        handles = [written_in_batches(store, [b"rows"], resumes=False) for _ in range(3)]
        handles = [handle.model_copy(update={"name": f"part-{n}"}) for n, handle in enumerate(handles)]
        for handle in handles:
            store.publish(handle, "auto")
        assert sorted(recorder.names) == ["get"] * 3 + ["put"] * 3 + ["put_finished"] * 3
        recorder.calls.clear()
    assert recorder.names == ["delete_many"]
    (keys,) = recorder.calls[0].arguments
    assert isinstance(keys, list)
    assert len(keys) == 6


def test_no_deletion_names_a_key_twice(s3_base: str, s3_options: S3Options) -> None:
    """Radosgw 16.2 crashes over it; a part that is published again has been left once."""
    recorder = Recorder(["delete_many"])
    with watched(s3_base, s3_options, recorder) as store:
        handle = written_in_batches(store, [b"a", b"b"], resumes=True)
        for _ in range(3):
            store.publish(handle, "auto")
    ((keys,),) = (call.arguments for call in recorder.calls)
    assert isinstance(keys, list)
    assert len(keys) == len(set(keys)) == 4


def test_a_part_whose_key_is_too_long_is_not_begun(store: S3Store) -> None:
    """Found out before rows are promised, not when the part is published."""
    with pytest.raises(ConfigError, match="1024"):
        store.create(new_part(bucket="/".join(["b" * 200] * 5)))


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


def finished_size(store: S3Store, handle: PartHandle) -> int:
    """The size of the finished file."""
    (found,) = [file.size for file in store.list() if file.path == handle.path_of(handle.name)]
    return found


def test_a_part_is_published_while_who_claimed_it_goes_on(
    s3_base: str, s3_options: S3Options, rng: random.Random
) -> None:
    """The tail goes under a number that no writer uses, so a zombie in the same upload cannot spoil it."""
    store = S3Store(s3_base, s3_options.model_copy(update={"call_timeout_s": 1.0}))
    first, second = rng.randbytes(6 * MIB), rng.randbytes(1000)
    handle = written_open(store, [first, second])
    zombie = store.resume(handle)
    zombie.write(bytes(6 * MIB))
    zombie.persist()
    assert TAIL_NUMBER not in {piece.number for piece in staging_of(zombie.handle).pieces}
    store.publish(handle, "auto")
    store.publish(handle, "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 30) == first + second
    zombie.write(bytes(9 * MIB))
    with pytest.raises(StoreError):
        zombie.persist()


def written_open(store: S3Store, batches: list[bytes], name: str = "part-0") -> PartHandle:
    """A part that gets one batch a checkpoint and stays open."""
    stream = store.create(new_part(name=name))
    for data in batches:
        stream.write(data)
        stream.persist()
    stream.close()
    return stream.handle


@pytest.mark.parametrize("size", [100, 6 * MIB])
def test_two_coordinators_that_publish_at_once_make_one_file(s3_base: str, s3_options: S3Options, size: int) -> None:
    """Between the last look of one and its request the other does it all: both find the file to be theirs."""
    with S3Store(s3_base, s3_options) as other:
        handle = written_open(other, [bytes(size), b"tail"])
        for call in ("put_finished", "complete_upload"):
            act = ActAt(1, lambda: other.publish(handle, "auto"), only={call})
            with watched(s3_base, s3_options, act) as store:
                store.publish(handle, "auto")
        assert finished_size(other, handle) == size + 4


@pytest.mark.parametrize("batches", [[b"small"], [bytes(6 * MIB)], [bytes(6 * MIB), b"tail"]])
def test_a_part_whose_bytes_are_gone_is_missing(store: S3Store, batches: list[bytes]) -> None:
    """N7: an upload that was aborted, or a side object that was deleted, is reported, by publish and settle."""
    handle = written_open(store, batches)
    assert store.discard(handle)
    for commit in (store.publish, store.settle):
        with pytest.raises(PartMissing, match=handle.name):
            commit(handle, "auto")
    assert not list(store.list())


def test_a_side_object_that_was_changed_is_not_published(store: S3Store, s3_server: S3Server) -> None:
    """Its length and checksum are in the handle."""
    handle = written_open(store, [b"valid bytes"])
    url = S3Url.of(store.base)
    key = url.key_of(f"_partfile/_sides/{staging_of(handle).sides[0].name}")
    for body in (b"other bytes", b"short", b"much longer than before"):
        s3_server.filesystem().call_s3("put_object", Bucket=url.bucket, Key=key, Body=body)
        with pytest.raises(PartMissing, match="not what was written"):
            store.publish(handle, "auto")


def test_the_finished_file_tells_whose_it_is(store: S3Store, s3_server: S3Server) -> None:
    """By object metadata; another part of the same name and length is a conflict."""
    url = S3Url.of(store.base)
    for size in (10, 6 * MIB):
        handle = written_open(store, [bytes(size)], name=f"part-{size}")
        store.publish(handle, "auto")
        key = url.key_of(handle.path_of(handle.name))
        answer = s3_server.filesystem().call_s3("head_object", Bucket=url.bucket, Key=key)
        assert answer["Metadata"][PART_METADATA] == part_id(handle)
        with pytest.raises(CommitConflict):
            store.publish(written_open(store, [bytes(size)], name=f"part-{size}"), "auto")


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


@pytest.mark.parametrize(
    ("staging", "valid_length"),
    [
        ({"claims": -1}, 0),
        ({"claims": 0, "unknown": 1}, 0),
        ({"claims": 0, "upload": "u"}, 0),
        ({"sides": [{"name": "../../x", "size_bytes": 1, "crc32": 0}]}, 1),
        ({"upload": "u", "pieces": [{"number": 2, "etag": "e", "size_bytes": 1}] * 2}, 2),
        ({"claims": 0}, 5),
    ],
)
def test_staging_that_this_store_did_not_write_is_refused(
    store: S3Store, staging: dict[str, object], valid_length: int
) -> None:
    """A handle comes from a file, and may hold anything: nothing is read, written or deleted by it."""
    handle = new_part().model_copy(update={"staging": staging, "valid_length": valid_length})
    with pytest.raises(SnapshotCorrupt):
        store.publish(handle, "auto")


def test_memory_is_bounded_over_all_open_parts(s3_base: str, s3_options: S3Options) -> None:
    """Beyond the limit parts put what they hold beside themselves, and still end as one file each."""
    options = S3Options.model_validate({**s3_options.model_dump(), "max_buffered_bytes": 4 * MIB})
    with S3Store(s3_base, options) as store:
        parts = [new_part(name=f"part-{n}") for n in range(8)]
        streams = [store.create(part) for part in parts]
        for _ in range(4):
            for stream in streams:
                stream.write(bytes(MIB))
                assert sum(len(one._buffer) for one in streams) <= 9 * MIB
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
