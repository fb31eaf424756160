"""Staging files on a model of S3: writers that die at any request, and side objects that are merged."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import LeaseUnavailable, PartDamaged, PartMissing, SnapshotCorrupt
from partfile.stores.s3.client import CHANGING_CALLS, this_process
from partfile.stores.s3.handle import S3Staging, claim_path, part_id, side_path
from partfile.stores.s3.store import S3Store
from partfile.stores.s3.stream import merged_count
from partfile.testing.faults import CrashAt, Recorder, SimulatedCrash, both_sides, count_calls, intercept
from partfile.testing.store import new_part, new_staging_file, read_staging_file, write_staging_file
from support.s3.model import Bucket, ModelCalls
from support.s3.model_worlds import AWS, GATEWAY, IGNORANT, OPTIONS, StaleLists, make_small
from support.sinks.staging_job import BATCHES, StagingJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.stores.base import PartHandle
    from partfile.testing.faults import Interceptor
    from support.s3.model import Rules


# Staging files on a model of S3: writers that die at any request, resume, and are discarded.

ALWAYS_MS = 1 << 50


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def opened(calls: ModelCalls, interceptor: Interceptor | None = None) -> S3Store:
    """A store of another process, which finds out anew what the server does."""
    this_process().traits.clear()
    options = OPTIONS.model_copy(update={"upload_part_bytes": 1 << 20})
    return S3Store("s3://model/base", options, calls=intercept(calls, interceptor) if interceptor else calls)


def job_on(calls: ModelCalls, *, resumes: bool) -> StagingJob:
    """A job in a bucket."""
    return StagingJob(lambda interceptor: opened(calls, interceptor), resumes=resumes)


@pytest.mark.drawn
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("rules", [AWS, GATEWAY], ids=lambda rules: rules.name)
@pytest.mark.fault("D14")
def test_a_writer_that_dies_at_any_request_loses_and_doubles_nothing(rules: Rules, resumes: bool) -> None:
    """D14: at each request, before and after it; what it left beside is the cleaner's, under the part's name."""
    requests = count_calls(lambda recorder: job_on(ModelCalls(rules), resumes=resumes).run(recorder), CHANGING_CALLS)
    assert requests > len(BATCHES)
    for number, when in both_sides(requests):
        calls = ModelCalls(rules)
        job = job_on(calls, resumes=resumes)
        crash = CrashAt(number, when, only=CHANGING_CALLS)
        with suppress(SimulatedCrash):
            job.run(crash)
        assert crash.has_crashed
        job.check()
        job.run()
        job.check()
        with opened(calls) as store:
            orphans = list(store.leftovers(job.staging_files, ALWAYS_MS))
            assert all(orphan.name == new_staging_file().name for orphan in orphans if "_probe" not in orphan.path)
            for staging_file in job.staging_files:
                store.discard(staging_file)
                with pytest.raises(PartMissing):
                    read_staging_file(store, staging_file)
            # What one who died has begun, whom no checkpoint names.
            for orphan in orphans:
                store.drop_leftover(orphan)
            assert not list(store.leftovers((), ALWAYS_MS))


@pytest.mark.usefixtures("_small")
def test_a_discard_that_dies_at_any_request_is_done_again() -> None:
    """The staging file is of no use by then; what is left goes with the next try, or with the cleaner."""

    def discard(store: S3Store, staging_file: PartHandle) -> None:
        store.discard(staging_file)

    calls = ModelCalls(AWS)
    staging_file = write_staging_file(opened(calls), *BATCHES)
    before = calls.picture()
    requests = count_calls(
        lambda recorder: discard(opened(ModelCalls(AWS, before), recorder), staging_file), CHANGING_CALLS
    )
    for number, when in both_sides(requests):
        calls = ModelCalls(AWS, before)
        with suppress(SimulatedCrash):
            discard(opened(calls, CrashAt(number, when, only=CHANGING_CALLS)), staging_file)
        store = opened(calls)
        store.discard(staging_file)
        assert not list(store.leftovers((), ALWAYS_MS))
        assert not store.is_staged(staging_file)


@pytest.mark.usefixtures("_small")
def test_every_older_handle_reads_what_it_vouches_for_until_all_is_discarded() -> None:
    """However often its bytes were merged since, and by whichever task."""
    calls = ModelCalls(AWS)
    store, data = opened(calls), b""
    staging_file, handles = new_staging_file(), list[tuple["PartHandle", bytes]]()
    stream = store.create(staging_file)
    for batch in BATCHES:
        stream.write(batch)
        data += batch
        handles.append((stream.persist(), data))
        stream.close()
        stream = store.resume(handles[-1][0])
    for handle, expected in handles:
        assert store.is_staged(handle)
        assert store.goes_back(handle)
        assert read_staging_file(store, handle) == expected
    assert len(_side_keys(calls.picture())) == len(BATCHES)
    # By an old handle, too: no handle names any of it.
    assert store.discard(handles[3][0])
    assert not _side_keys(calls.picture())
    for handle, _ in handles[:-1]:
        assert not store.is_staged(handle)


@pytest.mark.usefixtures("_small")
def test_two_who_go_on_from_one_handle_do_not_mix() -> None:
    """One wins the claim; a writer that handed the handle out and lost its claim adds nothing any more."""
    store = opened(ModelCalls(AWS))
    zombie = store.create(new_staging_file())
    zombie.write(BATCHES[0])
    handle = zombie.persist()
    winner = store.resume(handle)
    with pytest.raises(LeaseUnavailable):
        store.resume(handle)
    zombie.write(BATCHES[1])
    with pytest.raises(LeaseUnavailable):
        zombie.persist()
    winner.write(BATCHES[2])
    longer = winner.persist()
    assert read_staging_file(store, longer) == BATCHES[0] + BATCHES[2]
    assert read_staging_file(store, handle) == BATCHES[0]


@pytest.mark.usefixtures("_small")
def test_where_conditions_are_ignored_no_task_resumes_a_staging_file() -> None:
    """It is read back all the same."""
    store = opened(ModelCalls(IGNORANT))
    assert store.capabilities.staging_files
    assert not store.capabilities.append
    handle = write_staging_file(store, *BATCHES[:2])
    with pytest.raises(LeaseUnavailable):
        store.resume(handle)
    assert read_staging_file(store, handle) == BATCHES[0] + BATCHES[1]


@pytest.mark.usefixtures("_small")
def test_a_staging_file_has_no_upload_however_large_its_batches_are() -> None:
    """No reader could read it back before it is complete."""
    recorder = Recorder(CHANGING_CALLS)
    calls = ModelCalls(AWS)
    store = opened(calls, recorder)
    staging_file = write_staging_file(store, bytes(3 << 20), b"few", bytes(5 << 20))
    assert read_staging_file(store, staging_file) == bytes(3 << 20) + b"few" + bytes(5 << 20)
    assert set(recorder.names) == {"put"}


@pytest.mark.usefixtures("_small")
def test_lists_that_are_behind_leave_something_for_the_cleaner_and_no_more() -> None:
    """A list that does not show an object yet lets a discard miss it; nothing that counts goes by it."""
    calls = ModelCalls(AWS)
    store = opened(calls, StaleLists(calls, lag=3))
    kept = write_staging_file(store, *BATCHES)
    staging_file = write_staging_file(store, *BATCHES)
    store.discard(staging_file)
    assert read_staging_file(store, kept) == b"".join(BATCHES)
    left = {key.rpartition("/")[2].partition(".")[0] for key, _ in calls.picture().objects if "/_sides/" in key}
    assert left <= {part_id(kept), part_id(staging_file)}
    while store.discard(staging_file):
        pass
    assert {key.rpartition("/")[2].partition(".")[0] for key in _side_keys(calls.picture())} == {part_id(kept)}


@pytest.mark.usefixtures("_small")
def test_a_discard_takes_no_more_than_its_own() -> None:
    """Another staging file of the same final name, and a part beside it, stay as they are."""
    calls = ModelCalls(AWS)
    store = opened(calls)
    other, mine = write_staging_file(store, *BATCHES), write_staging_file(store, *BATCHES)
    part = store.create(new_part())
    part.write(BATCHES[0])
    handle = part.persist()
    assert store.discard(mine)
    assert read_staging_file(store, other) == b"".join(BATCHES)
    assert store.is_staged(handle)
    store.resume(other).close()


@pytest.mark.usefixtures("_small")
@pytest.mark.fault("H1")
def test_a_staging_file_of_side_objects_that_are_not_its_own_is_refused() -> None:
    """Handles come from files: one that names another part's bytes, or an upload, is damaged."""
    store = opened(ModelCalls(AWS))
    staging_file, other = write_staging_file(store, BATCHES[0]), write_staging_file(store, BATCHES[0])
    foreign = staging_file.model_copy(update={"staging": other.staging})
    piece = {"number": 1, "etag": "e", "size_bytes": len(BATCHES[0])}
    upload = staging_file.model_copy(update={"staging": {"claims": 0, "upload": "u", "pieces": [piece]}})
    for wrong in (foreign, upload):
        for verb in (store.open_staging_file, store.resume, store.discard):
            with pytest.raises(SnapshotCorrupt):
                verb(wrong)
    assert read_staging_file(store, other) == BATCHES[0]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("damage", [b"x" * len(BATCHES[0]), BATCHES[0][:-1], BATCHES[0] + b"x", None])
def test_a_side_object_that_is_not_what_was_written_is_told(damage: bytes | None) -> None:
    """Its checksum and its length are looked at before any of it is used; so it is when it is merged."""
    calls = ModelCalls(AWS)
    store = opened(calls)
    staging_file = write_staging_file(store, *[BATCHES[0]] * 7)
    staging = S3Staging.of(staging_file)
    assert staging is not None
    key = f"base/{side_path(staging.sides[3].name)}"
    if damage is None:
        calls.delete(key)
    else:
        calls.put(key, damage, {}, if_absent=False)
    told = PartMissing if damage is None else PartDamaged
    with pytest.raises(told):
        read_staging_file(store, staging_file)
    stream = store.resume(staging_file)
    stream.write(BATCHES[1])
    with pytest.raises(LeaseUnavailable if damage is None else PartDamaged):
        stream.persist()
    # What was merged into it would vouch for bytes that no task wrote.
    with opened(calls) as again, pytest.raises(told):
        read_staging_file(again, staging_file)


@pytest.mark.usefixtures("_small")
def test_a_claim_is_deleted_with_its_staging_file() -> None:
    """Those of all versions, of which each was extended once."""
    calls = ModelCalls(AWS)
    job = job_on(calls, resumes=True)
    job.run()
    assert job.open is not None
    claims = {f"base/{claim_path(job.open, number)}" for number in range(len(BATCHES) - 1)}
    assert claims <= {key for key, _ in calls.picture().objects}
    opened(calls).discard(job.open)
    assert not [key for key, _ in calls.picture().objects if "/_claims/" in key]


def _side_keys(picture: Bucket) -> list[str]:
    return [key for key, _ in picture.objects if "/_sides/" in key]


# Which side objects of a staging file are merged: few stay, little is written again, little is held in memory.

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.sampled_from([1, 100, 5 * KIB, 60 * KIB, MIB, 3 * MIB, 5 * MIB, 8 * MIB])
LEAST_LARGE = 4 * MIB


def grown(persists: Sequence[int]) -> tuple[list[int], int, int]:
    """The sizes of the side objects after these persists, the bytes written, and the most that was read at once."""
    sides: list[int] = []
    written = most_read = 0
    for size in persists:
        count = merged_count(sides, size)
        assert 0 <= count <= len(sides)
        merged = sides[len(sides) - count :]
        most_read = max(most_read, sum(merged))
        sides[len(sides) - count :] = [sum(merged) + size]
        written += sides[-1]
    assert sum(sides) == sum(persists)
    return sides, written, most_read


@given(st.lists(SIZES, max_size=300))
def test_whatever_is_persisted_few_objects_stay_and_little_is_read(persists: list[int]) -> None:
    """Seven of each size below the large ones; and large ones, of which each has 4 MiB."""
    sides, _, most_read = grown(persists)
    large = sum(size >= LEAST_LARGE for size in sides)
    assert large <= sum(persists) // LEAST_LARGE
    assert len(sides) <= 5 * 7 + large
    assert most_read <= 64 * MIB


@pytest.mark.parametrize("size", [1, 300, 10 * KIB, 200 * KIB, 2 * MIB])
def test_a_staging_file_of_equal_persists(size: int) -> None:
    """Each byte is written once a size that its object goes through, and a handle has some dozens of names."""
    persists = [size] * min(20_000, 256 * MIB // size)
    sides, written, most_read = grown(persists)
    total = sum(persists)
    steps = 1 + math.ceil(math.log(max(total, LEAST_LARGE) / size, 8))
    # Objects below 4 KiB are all of one size.
    assert written <= steps * total + 4 * KIB * len(persists)
    assert len(sides) <= 5 * 7 + total // LEAST_LARGE
    assert most_read < 12 * MIB


def test_the_objects_of_a_staging_file_of_many_gib_become_larger() -> None:
    """So that a handle grows with the logarithm of a staging file, as far as memory lets it."""
    small, _, _ = grown([MIB] * 512)
    large, _, most_read = grown([MIB] * 4096)
    assert len(small) <= 150
    assert len(large) - len(small) <= 3 * len(small)
    assert max(large) > 2 * max(small)
    assert most_read <= 96 * MIB


def test_what_is_large_is_written_once() -> None:
    """Nothing is read for batches that are large by themselves."""
    _, written, most_read = grown([5 * MIB] * 100)
    assert (written, most_read) == (500 * MIB, 0)


@pytest.mark.parametrize(("before", "large"), [(100, MIB), (100, 5 * MIB), (3 * MIB, 5 * MIB)])
def test_small_ones_before_a_larger_one_do_not_stay(before: int, large: int) -> None:
    """Else each large batch would leave the small ones before it behind for good."""
    sides, _, _ = grown([before, large] * 3)
    assert len(sides) == 3
