"""Where parts stay open on S3: what dead writers have sent, going back to older checkpoints, objects that are lost."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from partfile.errors import LeaseUnavailable, PartDamaged, PartMissing
from partfile.stores.s3.client import CHANGING_CALLS
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.faults import ActAt, Recorder
from partfile.testing.store import new_part
from support.crash.worlds import Process
from support.processes.command_line import run
from support.s3.life import MIB, Stream, at, finished_size, options_of, staging_of, watched
from support.s3.lost_objects import OBJECTS, leave_a_staging_file, start

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from partfile.stores.base import PartHandle
    from partfile.stores.s3.options import S3Options
    from support.s3.proxy import S3Proxy
    from support.s3.server import S3Server


# What dead writers have left in an upload is in no finished file, also where it cannot be left out.


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
    return store.prepare(committed), written


@pytest.mark.slow
def test_whatever_dead_writers_have_sent_what_counts_is_published(store: S3Store, rng: random.Random) -> None:
    """Random lives: the file has exactly the bytes of the last version that a checkpoint holds."""
    for number in range(ROUNDS):
        handle, expected = life(store, rng, f"part-{number}")
        store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 1 << 30) == expected


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_large_part_is_published_in_several_pieces(s3_base: str, s3_options: S3Options) -> None:
    """Also where bytes go beside the upload, and few of them first, for lack of memory: one PUT takes 5 GiB at most."""
    options = s3_options.model_copy(update={"max_buffered_bytes": MIB})
    recorder = Recorder(["put", "upload_part", "complete_upload"])
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
    assert max(len(data) for call in recorder.calls for data in call.arguments if isinstance(data, bytes)) < 16 * MIB


@pytest.mark.slow
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


# Going back to an older checkpoint on S3, also where what was sent since cannot be left out of the file.


BATCHES, BATCH_ROWS = 4, 6


@pytest.fixture
def stream(s3_server: S3Server) -> Stream:
    """Two open parts that got 9 MiB at each of four checkpoints; the process is gone."""
    stream = Stream(f"s3://{s3_server.bucket()}/base", options_of(s3_server), 28, 3 * MIB, BATCH_ROWS)
    out = stream.sink(retained_checkpoints=9).local().open()
    for number in range(BATCHES):
        out.write(stream.batch(number * BATCH_ROWS, BATCH_ROWS), position=(number + 1) * BATCH_ROWS)
        out.checkpoint()
    out.close()
    return stream


def checkpoints(stream: Stream) -> list[str]:
    """The checkpoints of the batches, oldest first."""
    with S3Store(stream.base, stream.options) as store:
        names = [name for name in store.list_names("_partfile/life") if name.startswith("chk-")]
        checkpoints = sorted(
            (name for name in names if store.file_exists(f"_partfile/life/{name}/_metadata")), key=_number
        )
    return [f"{stream.base}/_partfile/life/{name}" for name in checkpoints[-BATCHES:]]


def go_back(server: S3Server, stream: Stream, tmp_path: Path, chosen: str) -> Result:
    """Take the sink back to an older checkpoint, whatever came later."""
    words = ("--restore-from", chosen, "--accept-newer", "--apply", "--fence")
    return run("recover", *at(server, stream.base, tmp_path), *words)


def _number(name: str) -> int:
    return int(name.removeprefix("chk-"))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 2])
def test_going_back_loses_no_row(s3_server: S3Server, stream: Stream, batch: int, tmp_path: Path) -> None:
    """Open parts go back; where that cannot be they stay, and their later rows come twice, as the command says."""
    done = go_back(s3_server, stream, tmp_path, checkpoints(stream)[batch])
    assert done.exit_code == 0, done.stderr
    stream.run_to_the_end()
    is_stuck = s3_server.name == "radosgw" and batch == 0
    assert ("cannot be cut back" in done.stderr) is is_stuck
    doubled = range((batch + 1) * BATCH_ROWS, BATCHES * BATCH_ROWS) if is_stuck else range(0)
    assert stream.rows_seen() == Counter(range(stream.rows)) + Counter(doubled)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 2])
def test_going_back_over_a_damaged_checkpoint_loses_no_row(
    s3_server: S3Server, stream: Stream, batch: int, tmp_path: Path
) -> None:
    """Nothing tells what was added since: what cannot go back is refused, before anything is changed."""
    chosen = checkpoints(stream)
    url, path = S3Url.of(stream.base), chosen[-1].removeprefix(f"{stream.base}/")
    key = url.key_of(f"{path}/_metadata")
    s3_server.filesystem().call_s3("put_object", Bucket=url.bucket, Key=key, Body=b"damaged")
    if s3_server.name == "radosgw" and batch == 0:
        refused = go_back(s3_server, stream, tmp_path, chosen[batch])
        assert refused.exit_code == 1
        assert re.search(r"2 parts.*cannot be published", refused.stderr)
        assert stream.finished() == {}
        batch = 2
    done = go_back(s3_server, stream, tmp_path, chosen[batch])
    assert done.exit_code == 0, done.stderr
    stream.run_to_the_end()
    stream.assert_exactly_once()


# A large staging file on real S3 servers, of which one object is gone or changed, and is missed by a worker.


@pytest.fixture
def process(s3_proxy: S3Proxy, s3_base: str) -> Process:
    """A process that works there, by way of the proxy."""
    options = options_of(s3_proxy)
    return Process(s3_base, lambda url, _options: S3Store(url, options))


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, OBJECTS - 1])
@pytest.mark.fault("F7")
def test_an_object_that_is_gone_is_told_and_given_up_on_demand(
    process: Process, s3_proxy: S3Proxy, rng: random.Random, place: int
) -> None:
    """As a lifecycle rule takes the oldest first. The coordinator asks for each object, and reads none but the last."""
    paths = leave_a_staging_file(process, rng, MIB)
    with process.open_store(process.base, {}) as store:
        store.delete_file(paths[place])
    with pytest.raises(PartMissing, match="is not there"):
        start(process, process)
    s3_proxy.forget()
    assert start(process, process, gives_up=True).given_up == 1
    asked = s3_proxy.count("*/_sides/*")
    assert asked["HeadObject"] <= place + 1
    assert asked["GetObject"] <= place + 1
    assert not process.owes()


@pytest.mark.slow
@pytest.mark.fault("F18")
def test_an_object_that_was_changed_is_damage(process: Process, rng: random.Random) -> None:
    """A recovery that gives missing parts up does not lose a large staging file by one bit; put back, it is encoded."""
    path = leave_a_staging_file(process, rng, MIB)[0]
    with process.open_store(process.base, {}) as store:
        written = store.read_file(path, 16 * MIB)
        store.delete_file(path)
        store.create_file(path, written[:-1] + bytes([written[-1] ^ 1]))
    with pytest.raises(PartDamaged, match="is not what was written"):
        start(process, process, gives_up=True)
    with process.open_store(process.base, {}) as store:
        store.delete_file(path)
        store.create_file(path, written)
    assert start(process, process, gives_up=True).encoded == 1
    assert not process.owes()
