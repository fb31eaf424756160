"""What dead writers have left in an upload is in no finished file, also where it cannot be left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.errors import LeaseUnavailable
from partfile.stores.s3.client import CHANGING_CALLS
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import ActAt, Recorder
from partfile.testing.store import new_part
from support.s3.life import MIB, finished_size, staging_of, watched

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from partfile.stores.base import PartHandle
    from partfile.stores.s3.options import S3Options
    from support.servers.s3 import S3Server


pytestmark = pytest.mark.slow

ROUNDS = 4


@pytest.fixture(params=["moto", "radosgw"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The servers on which parts stay open: one leaves upload parts out at completion, the other refuses that."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def store(s3_base: str, s3_options: S3Options) -> Iterator[S3Store]:
    """The store under test."""
    with S3Store(s3_base, s3_options) as store:
        yield store


def life(store: S3Store, rng: random.Random, name: str) -> tuple[PartHandle, bytes]:
    """A part that gets random bytes over random checkpoints by random writers, the last of whom dies; what counts."""
    stream = store.create(new_part(name=name))
    committed, written = stream.handle, b""
    for _ in range(rng.randint(1, 5)):
        for _ in range(rng.randint(1, 3)):
            data = rng.randbytes(rng.choice([100, MIB, 3 * MIB, 9 * MIB]))
            stream.write(data)
            written += data
        committed = stream.persist()
        if rng.random() < 0.5:
            stream.close()
            stream = store.resume(committed)
    # The writer sends as much as it can, and may even persist it, but no checkpoint hears of it.
    stream.write(bytes(rng.choice([100, 6 * MIB, 20 * MIB])))
    if rng.random() < 0.5:
        stream.persist()
    stream.close()
    return committed, written


def test_whatever_dead_writers_have_sent_what_counts_is_published(store: S3Store, rng: random.Random) -> None:
    """Random lives: the file has exactly the bytes of the last version that a checkpoint holds."""
    for number in range(ROUNDS):
        handle, expected = life(store, rng, f"part-{number}")
        store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 1 << 30) == expected


def test_a_writer_moves_committed_bytes_and_dies(s3_server: S3Server, store: S3Store, rng: random.Random) -> None:
    """The driver publishes the version before: it sends the upload parts that the writer sent, and names them all."""
    data = [rng.randbytes(4 * MIB), rng.randbytes(9 * MIB), rng.randbytes(9 * MIB)]
    stream = store.create(new_part())
    for some in data:
        stream.write(some)
        handle = stream.persist()
    stream.close()
    dead = store.resume(handle)
    dead.write(bytes(30 * MIB))
    moved = staging_of(dead.persist())
    dead.close()
    assert staging_of(handle).names_all is (s3_server.name == "radosgw")
    assert len(moved.pieces) > len(staging_of(handle).pieces)
    store.publish(handle, "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 30) == b"".join(data)


def test_a_zombie_moves_committed_bytes_after_they_were_sent_by_who_publishes(
    s3_base: str, s3_options: S3Options, store: S3Store, rng: random.Random
) -> None:
    """Before the completion the zombie sends upload parts of its own: they are the same, and the file is right."""
    data = [rng.randbytes(4 * MIB), rng.randbytes(20 * MIB)]
    stream = store.create(new_part())
    for some in data:
        stream.write(some)
        handle = stream.persist()
    stream.close()
    zombie = store.resume(handle)

    def act() -> None:
        zombie.write(bytes(20 * MIB))
        zombie.persist()

    with watched(s3_base, s3_options, ActAt(1, act, only={"complete_upload"})) as late:
        late.publish(handle, "auto")
    assert store.read_file(handle.path_of(handle.name), 1 << 30) == b"".join(data)


def test_bytes_are_written_twice_at_most(s3_base: str, s3_options: S3Options, rng: random.Random) -> None:
    """On either kind of server, for batches that are larger than upload parts as well."""
    for batch_bytes in (MIB, 12 * MIB):
        recorder = Recorder(CHANGING_CALLS)
        with watched(s3_base, s3_options, recorder) as store:
            stream = store.create(new_part(name=f"part-{batch_bytes}"))
            for _ in range(8):
                stream.write(rng.randbytes(batch_bytes))
                handle = stream.persist()
                stream.close()
                stream = store.resume(handle)
            store.publish(stream.close_for_commit(), "auto")
        sent = sum(len(one) for call in recorder.calls for one in call.arguments if isinstance(one, bytes))
        assert sent <= 2 * 8 * batch_bytes + 100


def test_a_large_part_is_published_in_several_pieces(s3_base: str, s3_options: S3Options) -> None:
    """Also where bytes go beside the upload, and few of them first, for lack of memory: one PUT takes 5 GiB at most."""
    options = s3_options.model_copy(update={"max_buffered_bytes": MIB})
    recorder = Recorder(["put_finished", "upload_part", "complete_upload"])
    with watched(s3_base, options, recorder) as store:
        stream = store.create(new_part())
        stream.write(b"x")
        stream.persist()
        for _ in range(10):
            stream.write(bytes(2 * MIB))
            stream.write(b"few")
        handle = stream.persist()
        stream.close()
        store.publish(handle, "auto")
        assert finished_size(store, handle) == handle.valid_length == 20 * MIB + 31
    assert "put_finished" not in recorder.names
    assert max(len(data) for call in recorder.calls for data in call.arguments if isinstance(data, bytes)) < 16 * MIB


def test_the_loser_of_a_claim_moves_nothing(store: S3Store) -> None:
    """It has not won the right to use a number."""
    stream = store.create(new_part())
    for size in (4 * MIB, 20 * MIB):
        stream.write(bytes(size))
        handle = stream.persist()
    store.resume(handle).close()
    with pytest.raises(LeaseUnavailable):
        stream.write(bytes(20 * MIB))
    stream.close()
    store.publish(handle, "auto")
    assert [file.size for file in store.list()] == [24 * MIB]
