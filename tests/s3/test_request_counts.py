"""What parts cost on S3: requests counted at a proxy, those for parts apart from those for checkpoints.

docs/S3.md has the same numbers. Parts are what is under the buckets, ``_partfile/_sides`` and ``_partfile/_claims``;
checkpoints are what is under ``_partfile/job``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import partfile as pf
from partfile.stores.s3.store import S3Store
from support.repo.request_tables import promised_requests
from support.s3.life import MIB, options_of, store_options, written_in_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.local import LocalSink
    from support.s3.proxy import S3Proxy
    from support.s3.server import S3Server


ABOUT_THE_BUCKET = {"HeadBucket", "GetBucketVersioning", "GetBucketLifecycleConfiguration"}
PART = Counter(CreateMultipartUpload=1, UploadPart=1, CompleteMultipartUpload=1)
"""That lived in one batch."""
LOOK = Counter(HeadObject=1)
"""Before a part is published by a request whose condition the server ignores."""
OPEN_PART = Counter(PutObject=2)
"""That a batch writes to: its claim and a side object."""
REQUESTS_IN_TWENTY_BATCHES = 3 * 20 + 5
RESTORED_PARTS = {
    "small": ([10], Counter(GetObject=1) + PART),
    "small, three batches": ([10, 10, 10], Counter(GetObject=3) + PART),
    "upload": ([6 * MIB], Counter(CompleteMultipartUpload=1)),
    "upload and tail": ([6 * MIB, 10], Counter(GetObject=1, UploadPart=1, CompleteMultipartUpload=1)),
}
"""Bytes that each batch has written to an open part, and what its publication at a restore asks."""
CHECKPOINT = Counter(PutObject=1, GetObject=1, ListObjectsV2=1, DeleteObject=1)
"""Its checkpoint; the one before it, read again; the oldest one goes."""
MARK = Counter(PutObject=1)
"""Of a checkpoint that published something."""
RESTORE = Counter(ListObjectsV2=6, HeadObject=1, GetObject=3, PutObject=2, DeleteObject=1)
"""A takeover, a mark, and the oldest checkpoint goes."""


class Job:
    """A sink in plain Python, in front of a proxy, whose parts stay open until they are told to end."""

    def __init__(self, proxy: S3Proxy, base: str) -> None:
        self.proxy = proxy
        self.base = base
        self._sink = pf.FileSink(
            base,
            uid="job",
            format="json",
            bucketer=pf.HiveBucketer("bucket"),
            rolling=pf.RollingPolicy(max_part_bytes=1 << 40, rollover_interval_s=1e6, inactivity_interval_s=1e6),
            storage_options=store_options(proxy),
            inline_threshold_bytes=1 << 20,
        )
        self.out = self.start()

    def start(self) -> LocalSink:
        """Restore."""
        self.out = self._sink.local().open()
        return self.out

    def batch(self, parts: int, row_bytes: int = 10) -> None:
        """Write a row into each of so many buckets and take a checkpoint."""
        buckets = [f"b{number}" for number in range(parts)]
        self.out.write(pa.RecordBatch.from_pydict({"bucket": buckets, "row": ["x" * row_bytes] * parts}))
        self.out.checkpoint(1)

    def asked(self, work: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
        """What was asked for the sake of parts, and of checkpoints, while something was done."""
        self.proxy.forget()
        work()
        parts: Counter[str] = Counter()
        checkpoints: Counter[str] = Counter()
        for exchange in self.proxy.exchanges:
            request = exchange.request
            place = request.prefix or request.key
            if request.operation in ABOUT_THE_BUCKET:
                continue
            # A deletion of many names its keys in its body; parts are deleted when the store is closed.
            is_checkpoint = "/_partfile/job" in place or request.operation == "DeleteObjects"
            (checkpoints if is_checkpoint else parts)[request.operation] += 1
        return parts, checkpoints


@pytest.fixture
def job(s3_proxy: S3Proxy, s3_base: str) -> Job:
    """A sink of this test's own, started."""
    return Job(s3_proxy, s3_base)


def times(many: int, each: Counter[str]) -> Counter[str]:
    """What ``many`` of them ask."""
    return +Counter({name: many * count for name, count in each.items()})


def test_the_document_promises_these_numbers() -> None:
    """docs/S3.md says what is counted here; it needs no server to see that they agree."""
    said = promised_requests("S3.md", "What is asked, and what it costs")
    publications = [asked.total() - asked["GetObject"] for _, asked in RESTORED_PARTS.values()]
    counted = {
        "part of up to 8 MiB that lived in one batch": f"{PART.total()}",
        "the same where the condition is not honoured": f"{LOOK.total()} more",
        "open part that a batch writes to": f"{OPEN_PART.total()}",
        "part that got 1 MiB in each of 20 batches": f"at most {REQUESTS_IN_TWENTY_BATCHES}",
        "restored part": f"at most {max(publications)}",
        "checkpoint": f"{CHECKPOINT.total()}",
        "checkpoint that published a part": f"{MARK.total()} more",
        "restore": f"{RESTORE.total()}",
    }
    assert {row: said.get(row) for row in counted} == counted


@pytest.mark.slow
@pytest.mark.parametrize("size", [1000, 5 * MIB - 1, 5 * MIB, 8 * MIB])
def test_a_part_that_lived_in_one_batch(s3_server: S3Server, s3_proxy: S3Proxy, s3_base: str, size: int) -> None:
    """Three requests; and a look first, where the server ignores the condition of the request that publishes."""
    with S3Store(s3_base, options_of(s3_proxy)) as store:
        traits = store.capabilities
        s3_proxy.forget()
        store.publish(written_in_batches(store, [bytes(size)], resumes=False), "auto")
        asked = s3_proxy.count()
        assert asked == PART + times(0 if traits.no_replace else 1, LOOK), s3_server.name
    # What is left of all parts goes when the store is closed, many by one request where the server can.
    assert 1 <= s3_proxy.count()["DeleteObjects"] + s3_proxy.count()["DeleteObject"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [True, False])
def test_a_part_that_lived_in_twenty_batches(
    s3_server: S3Server, s3_proxy: S3Proxy, s3_base: str, resumes: bool
) -> None:
    """At most three requests a batch of 1 MiB plus five, and at most twice the bytes."""
    if s3_server.name == "rclone":
        pytest.skip("parts roll at each checkpoint where no task can claim them")
    with S3Store(s3_base, options_of(s3_proxy)) as store:
        # What a process finds out once is not the part's.
        assert store.capabilities.append
        written_in_batches(store, [bytes(4 * MIB)] * 3, resumes=False)
        s3_proxy.forget()
        store.publish(written_in_batches(store, [bytes(MIB)] * 20, resumes=resumes), "auto")
        assert s3_proxy.count().total() <= REQUESTS_IN_TWENTY_BATCHES
        assert sum(exchange.request_bytes for exchange in s3_proxy.exchanges) <= 2 * 20 * MIB + 20_000
        assert [file.size for file in store.list()] == [20 * MIB]


@pytest.mark.slow
def test_a_batch_costs_its_open_parts_and_its_checkpoint(s3_server: S3Server, job: Job) -> None:
    """Two requests an open part that is written to, four a checkpoint, however many there were before."""
    for _ in range(3):
        job.batch(5)
    for parts in (5, 1):
        asked, checkpoint = job.asked(lambda parts=parts: job.batch(parts))  # type: ignore[misc]
        if s3_server.name == "rclone":
            # Parts roll at each checkpoint.
            assert asked == times(parts, PART + LOOK)
        else:
            assert asked == times(parts, OPEN_PART)
            assert checkpoint == CHECKPOINT
    job.out.close()


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize(("batches", "expected"), RESTORED_PARTS.values(), ids=RESTORED_PARTS)
def test_a_restore_publishes_open_parts_and_lists_none(
    s3_server: S3Server, job: Job, batches: list[int], expected: Counter[str]
) -> None:
    """At most three requests publish an open part, a GET of each side object before; only checkpoints are listed."""
    if s3_server.name == "rclone":
        pytest.skip("no part is open after a checkpoint")
    job.batch(1, 10)
    for parts in (1, 4):
        job.out.finish()
        job.start()
        for row_bytes in batches:
            job.batch(parts, row_bytes)
        job.out.close()
        asked, checkpoints = job.asked(job.start)
        looks = parts if s3_server.name == "radosgw" else 0
        assert asked == times(parts, expected) + Counter(HeadObject=looks)
        assert checkpoints == RESTORE
        listed = {one.request.prefix for one in job.proxy.exchanges if one.request.operation == "ListObjectsV2"}
        assert all("/_partfile/job/" in prefix for prefix in listed)
    job.out.close()


@pytest.mark.slow
@pytest.mark.drawn(1)
def test_what_a_finished_part_leaves_is_never_asked_for_again(s3_server: S3Server, job: Job) -> None:
    """After forty finished parts a batch asks what it asked after four."""
    found = []
    for finished in (4, 40):
        while len(list_finished(s3_server, job)) < finished:
            job.batch(8)
            job.out.finish()
            job.start()
        for _ in range(4):
            job.batch(2)
        found.append(job.asked(lambda: job.batch(2)))
        job.out.close()
        job.start()
    assert found[0] == found[1]
    job.out.close()


def list_finished(server: S3Server, job: Job) -> list[str]:
    """The paths of the finished files, asked of the server itself."""
    with S3Store(job.base, options_of(server)) as store:
        return [file.path for file in store.list()]


@pytest.mark.slow
def test_no_object_is_ever_copied(s3_proxy: S3Proxy, job: Job) -> None:
    """Neither whole nor in parts, in a life with uploads, side objects, a crash and a restore."""
    for row_bytes in (10, 6 * MIB, 10):
        job.batch(2, row_bytes)
    job.out.close()
    job.start()
    job.batch(2)
    job.out.finish()
    counted = {exchange.request.operation for exchange in s3_proxy.exchanges}
    assert "CompleteMultipartUpload" in counted
    assert not {name for name in counted if "Copy" in name}
