"""How a part on S3 is published: by several at once, beside zombies, with bytes gone or others' in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_life import MIB
from s3_part_support import finished_size, staging_of, watched, written_open

from partfile.filesystems.contract_base import new_part
from partfile.filesystems.errors import CommitConflict, PartMissing, SnapshotCorrupt, StoreError
from partfile.filesystems.faults import ActAt
from partfile.filesystems.s3 import S3Store
from partfile.filesystems.s3_staging import PART_METADATA, TAIL_NUMBER, part_id
from partfile.filesystems.s3_url import S3Url

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from s3_server import S3Server

    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_options import S3Options
    from partfile.filesystems.s3_staging import Piece


@pytest.fixture
def s3_server(moto: S3Server) -> S3Server:
    """The server that honours every precondition; what others do is the contract's."""
    return moto


@pytest.fixture
def store(s3_base: str, s3_options: S3Options) -> Iterator[S3Store]:
    """The store under test."""
    with S3Store(s3_base, s3_options) as store:
        yield store


def test_a_part_is_published_while_who_claimed_it_goes_on(
    s3_base: str, s3_options: S3Options, rng: random.Random
) -> None:
    """The tail goes under a number that no writer uses, so a zombie in the same upload cannot spoil it."""
    store = S3Store(s3_base, s3_options.model_copy(update={"call_timeout_s": 4.0}))
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


def test_an_etag_that_changed_for_equal_bytes_is_no_loss(store: S3Store) -> None:
    """As with SSE-KMS, where a late repetition changes it: number, length and checksum of each upload part decide."""
    handle = written_open(store, [bytes(6 * MIB), b"tail"])
    pieces = [piece.model_copy(update={"etag": '"of the first try"'}) for piece in staging_of(handle).pieces]
    store.publish(with_pieces(handle, pieces), "auto")
    assert finished_size(store, handle) == 6 * MIB + 4


@pytest.mark.parametrize("change", [{"size_bytes": 6 * MIB + 1}, {"number": 2}], ids=str)
def test_an_upload_part_that_is_another_one_is_missing(store: S3Store, change: dict[str, int]) -> None:
    """Other bytes are never published, whatever they are called."""
    handle = written_open(store, [bytes(6 * MIB)])
    (piece,) = (one.model_copy(update={"etag": '"other"', **change}) for one in staging_of(handle).pieces)
    handle = with_pieces(handle, [piece]).at(piece.size_bytes)
    with pytest.raises(PartMissing, match="upload parts"):
        store.publish(handle, "auto")
    assert not list(store.list())


def with_pieces(handle: PartHandle, pieces: list[Piece]) -> PartHandle:
    """The part with other upload parts."""
    staging = staging_of(handle).model_copy(update={"pieces": tuple(pieces)})
    return handle.model_copy(update={"staging": staging.as_json()})


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
