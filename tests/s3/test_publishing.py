"""How a part on S3 is published: by several at once, beside zombies, with bytes gone or others' in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from botocore.exceptions import ClientError

from partfile.errors import CommitConflict, NotApplied, PartDamaged, PartMissing, SnapshotCorrupt, StoreError
from partfile.stores.s3.client import S3Calls
from partfile.stores.s3.handle import PART_METADATA, part_id
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.faults import ActAt, Recorder
from partfile.testing.store import new_part
from support.s3.life import MIB, finished_size, ruled, staging_of, watched, written_open

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from partfile.stores.base import PartHandle
    from partfile.stores.s3.handle import Piece
    from support.s3.server import S3Server


# What servers that no test can run refuse, by their documentation: requests as usual, with that rule before them.


class AwsCalls(S3Calls):
    """AWS wants numbers from 1 on without a gap where upload parts have checksums of their own.

    Source: the API reference of CompleteMultipartUpload, ``CompletedPart.PartNumber``, as of botocore 1.43.
    """

    def complete_upload(self, key: str, upload: str, pieces: Sequence[Piece], *, if_absent: bool) -> None:
        """Refuse what AWS refuses."""
        numbers = [piece.number for piece in pieces]
        if any(piece.crc32 is not None for piece in pieces) and numbers != list(range(1, len(numbers) + 1)):
            raise refusal("InvalidPartOrder")
        super().complete_upload(key, upload, pieces, if_absent=if_absent)


class RefusedCompletions(S3Calls):
    """A server that refuses every completion, with ``code``."""

    code: ClassVar[str]

    def complete_upload(self, *_arguments: object, **_keywords: object) -> None:
        """Refuse it."""
        raise refusal(self.code)


class DisabledKey(RefusedCompletions):
    """AWS when the KMS key of an upload is disabled, which can be undone."""

    code = "KMS.DisabledException"


class InvalidParts(RefusedCompletions):
    """A server that has lost something."""

    code = "InvalidPart"


def refusal(code: str) -> OSError:
    """A 400 as s3fs raises it."""
    response = {"Error": {"Code": code, "Message": "as documented"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    error = OSError(22, code)
    error.__cause__ = ClientError(response, "CompleteMultipartUpload")
    return error


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
    """What a zombie has sent under the number of the tail is replaced, and what it sends later comes too late."""
    store = S3Store(s3_base, s3_options)
    first, second = rng.randbytes(6 * MIB), rng.randbytes(1000)
    handle = written_open(store, [first, second])
    claimed = store.resume(handle)
    claimed.write(bytes(6 * MIB))
    claimed.persist()
    assert [piece.number for piece in staging_of(claimed.handle).pieces] == [1, 2]
    # A gateway answers 500 to the request that comes too late, and is asked again until the deadline.
    zombie = S3Store(s3_base, s3_options.model_copy(update={"call_timeout_s": 15.0})).resume(claimed.handle)
    store.publish(handle, "auto")
    store.publish(handle, "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 30) == first + second
    zombie.write(bytes(9 * MIB))
    with pytest.raises(StoreError):
        zombie.persist()


def test_a_zombie_replaces_the_tail_before_the_completion(
    s3_base: str, s3_options: S3Options, store: S3Store, rng: random.Random
) -> None:
    """The completion names ETags, so it makes no file of the zombie's bytes; the tail is sent again."""
    first, second = rng.randbytes(6 * MIB), rng.randbytes(1000)
    handle = written_open(store, [first, second])
    zombie = store.resume(handle)

    def act() -> None:
        zombie.write(bytes(6 * MIB))
        zombie.persist()

    with watched(s3_base, s3_options, ActAt(1, act, only={"complete_upload"})) as late:
        late.publish(handle, "auto")
    assert staging_of(zombie.handle).pieces[1].number == 2
    assert store.read_file(handle.path_of(handle.name), 1 << 30) == first + second


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
def test_aws_takes_an_upload_with_a_tail(s3_base: str, s3_options: S3Options, checksum: str) -> None:
    """Its numbers have no gap, whichever process has gone on from it, in one stream or in several."""
    options = S3Options.model_validate({**s3_options.model_dump(), "checksum": checksum})
    with ruled(s3_base, options, AwsCalls) as store:
        for resumes in (False, True):
            handle = written_open(store, [bytes(6 * MIB), b"tail"], name=f"part-{resumes}")
            if resumes:
                stream = store.resume(handle)
                stream.write(bytes(6 * MIB))
                stream.persist()
                stream.write(b"tail")
                handle = stream.persist()
                stream.close()
            assert staging_of(handle).sides
            store.publish(handle, "auto")
            assert finished_size(store, handle) == handle.valid_length


@pytest.mark.parametrize("batches", [[bytes(6 * MIB)], [bytes(6 * MIB), b"tail"]], ids=len)
def test_a_refusal_that_can_be_undone_is_no_loss(s3_base: str, s3_options: S3Options, batches: list[bytes]) -> None:
    """As of a disabled key: no hint says to give the part up, and it is published once the server takes it."""
    with ruled(s3_base, s3_options, DisabledKey) as store:
        handle = written_open(store, batches)
        with pytest.raises(NotApplied, match="DisabledException"):
            store.publish(handle, "auto")
    with S3Store(s3_base, s3_options) as store:
        store.publish(handle, "auto")
        assert finished_size(store, handle) == handle.valid_length


@pytest.mark.parametrize("batches", [[bytes(6 * MIB)], [bytes(6 * MIB), b"tail"]], ids=len)
def test_what_s3_makes_no_file_of_is_missing(s3_base: str, s3_options: S3Options, batches: list[bytes]) -> None:
    """Also with side objects: else no start could ever give the part up."""
    recorder = Recorder(["complete_upload"])
    with watched(s3_base, s3_options, recorder, InvalidParts) as store:
        handle = written_open(store, batches)
        with pytest.raises(PartMissing, match="no file"):
            store.publish(handle, "auto")
    assert 1 < len(recorder.names) < 10


@pytest.mark.parametrize("size", [100, 6 * MIB])
def test_two_coordinators_that_publish_at_once_make_one_file(s3_base: str, s3_options: S3Options, size: int) -> None:
    """Between the last look of one and its request the other does it all: both find the file to be theirs."""
    with S3Store(s3_base, s3_options) as other:
        handle = written_open(other, [bytes(size), b"tail"])
        for call in ("upload_part", "complete_upload"):
            act = ActAt(1, lambda: other.publish(handle, "auto"), only={call})
            with watched(s3_base, s3_options, act) as store:
                store.publish(handle, "auto")
        assert finished_size(other, handle) == size + 4


@pytest.mark.parametrize("batches", [[b"small"], [bytes(6 * MIB)], [bytes(6 * MIB), b"tail"]])
@pytest.mark.fault("N7")
def test_a_part_whose_bytes_are_gone_is_missing(
    store: S3Store, batches: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N7: an upload that was aborted, or a side object that was deleted, is reported."""
    # moto answers 500 to the completion of an upload that is gone.
    monkeypatch.setattr("partfile.stores.s3.store._BROKEN_FOR_S", 1.0)
    handle = written_open(store, batches)
    assert store.discard(handle)
    with pytest.raises(PartMissing, match=handle.name):
        store.publish(handle, "auto")
    assert not list(store.list())


@pytest.mark.fault("F11")
def test_a_side_object_that_was_changed_is_not_published(store: S3Store, s3_server: S3Server) -> None:
    """Its length and checksum are in the handle."""
    handle = written_open(store, [b"valid bytes"])
    url = S3Url.of(store.base)
    key = url.key_of(f"_partfile/_sides/{staging_of(handle).sides[0].name}")
    for body in (b"other bytes", b"short", b"much longer than before"):
        s3_server.filesystem().call_s3("put_object", Bucket=url.bucket, Key=key, Body=body)
        with pytest.raises(PartDamaged, match="not what was written"):
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
    for part in (handle, with_a_tail(store, handle)):
        with pytest.raises(PartMissing, match="a different upload part"):
            store.publish(part, "auto")
    assert not list(store.list())


def with_a_tail(store: S3Store, handle: PartHandle) -> PartHandle:
    """The part with a side object as well."""
    sides = staging_of(written_open(store, [b"tail"], name="other")).sides
    staging = staging_of(handle).model_copy(update={"sides": sides})
    return handle.at(handle.valid_length + 4).model_copy(update={"staging": staging.as_json()})


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
        ({"sides": [{"name": "../../x", "size_bytes": 1, "crc32": 0}]}, 1),
        ({"upload": "u", "pieces": [{"number": 2, "etag": "e", "size_bytes": 1}] * 2}, 2),
        ({"pieces": [{"number": 1, "etag": "e", "size_bytes": 1}]}, 1),
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
