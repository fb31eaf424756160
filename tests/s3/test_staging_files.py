"""Staging files on real S3 servers.

Killed writers, lost replies, what each verb costs, and what the cleaner is shown.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from partfile.errors import PartMissing
from partfile.stores.s3.client import CHANGING_CALLS
from partfile.stores.s3.handle import side_path
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import KillAt, count_calls
from partfile.testing.store import new_staging_file, read_staging_file, write_staging_file
from support.s3.life import options_of, staging_of, watched
from support.s3.proxy import internal_error, lost_reply, reset
from support.sinks.life_cycle import in_child
from support.sinks.staging_job import BATCHES, StagingJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.stores.s3.options import S3Options
    from partfile.testing.faults import Interceptor
    from support.s3.proxy import S3Proxy
    from support.s3.server import S3Server


MIB = 1 << 20
ALWAYS_MS = 1 << 50
SAMPLES = {"moto": 4, "radosgw": 2}
FAULTS = {"lost": lost_reply(), "reset": reset(), "500": internal_error(reaches_server=True)}


@pytest.fixture(params=["moto", "radosgw"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The servers on which parts stay open."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


def job_on(server: S3Server, options: S3Options, notes: Path | None = None) -> StagingJob:
    """A job in a bucket of its own, each batch by another attempt."""
    base = f"s3://{server.bucket()}/base"

    def open_store(interceptor: Interceptor | None) -> S3Store:
        return S3Store(base, options) if interceptor is None else watched(base, options, interceptor)

    return StagingJob(open_store, resumes=True, notes=notes)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.fault("D14")
def test_a_kill_at_a_request_loses_and_doubles_nothing(
    s3_server: S3Server,
    s3_options: S3Options,
    tmp_path: Path,
    when: str,
    chosen: Callable[[int, int], list[int]],
) -> None:
    """D14: SIGKILL at request n of a writer: what a checkpoint vouches for is read, and the next one goes on."""
    calls = count_calls(lambda recorder: job_on(s3_server, s3_options).run(recorder), CHANGING_CALLS)
    for number in chosen(calls, SAMPLES[s3_server.name]):
        notes = tmp_path / f"{number}.json"
        job = job_on(s3_server, s3_options, notes)
        killer = KillAt(number, "before" if when == "before" else "after", only=CHANGING_CALLS)
        assert in_child(lambda job=job, killer=killer: job.run(killer)) == -signal.SIGKILL  # type: ignore[misc]
        survivor = StagingJob(job._open_store, resumes=True, notes=notes)
        survivor.check()
        survivor.run()
        survivor.check()
        assert survivor.done == len(BATCHES)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.fault("N2", "N3")
def test_a_request_that_goes_wrong_once(
    s3_server: S3Server, s3_proxy: S3Proxy, fault: object, chosen: Callable[[int, int], list[int]]
) -> None:
    """N2, N3: a claim, a side object or a read whose outcome is unknown is tried again, and nothing is there twice."""
    job_on(s3_server, options_of(s3_proxy)).run()
    asked = s3_proxy.count()
    for operation in ("PutObject", "GetObject"):
        for position in chosen(asked[operation], 1):
            job = job_on(s3_server, options_of(s3_proxy))
            injection = s3_proxy.inject(fault, operation=operation, first=position)  # type: ignore[arg-type]
            job.run()
            s3_proxy.heal()
            assert injection.struck.is_set(), (operation, position)
            job.check()
            assert len(job.staging_files) == 1


def test_what_staging_files_cost(s3_proxy: S3Proxy, s3_base: str) -> None:
    """A persist is one request, and one more for who goes on; what is merged is read; a discard is two."""
    with S3Store(s3_base, options_of(s3_proxy)) as store:
        assert store.capabilities.append
        s3_proxy.forget()
        staging_file = write_staging_file(store, BATCHES[0])
        assert s3_proxy.count() == Counter(PutObject=1)
        for batch in BATCHES[1:8]:
            s3_proxy.forget()
            stream = store.resume(staging_file)
            stream.write(batch)
            staging_file = stream.persist()
            stream.close()
        # The eighth makes one object of all.
        assert s3_proxy.count() == Counter(PutObject=2, GetObject=7)
        assert len(staging_of(staging_file).sides) == 1
        s3_proxy.forget()
        assert read_staging_file(store, staging_file) == b"".join(BATCHES[:8])
        assert s3_proxy.count() == Counter(GetObject=1)
        s3_proxy.forget()
        store.discard(staging_file)
        assert s3_proxy.count() == Counter(ListObjectsV2=1, DeleteObjects=1)


def test_a_large_staging_file_is_read_piece_by_piece(s3_proxy: S3Proxy, s3_base: str) -> None:
    """No more is asked for than what is read, so that who encodes it holds little."""
    data = [bytes([number]) * (5 * MIB) for number in range(4)]
    with S3Store(s3_base, options_of(s3_proxy)) as store:
        staging_file = write_staging_file(store, *data)
        s3_proxy.forget()
        with store.open_staging_file(staging_file) as file:
            assert file.read(10) == data[0][:10]
            assert s3_proxy.count()["GetObject"] == 1
            assert file.seek(16 * MIB) == 16 * MIB
            assert file.read() == data[3][MIB:]
            assert s3_proxy.count()["GetObject"] == 2


def test_the_cleaner_is_shown_whose_side_objects_they_are(s3_base: str, s3_options: S3Options) -> None:
    """Of a staging file that a checkpoint names nothing is left over, merged objects included.

    Of another one all is.
    """
    with S3Store(s3_base, s3_options) as store:
        kept, orphan = (write_staging_file(store, *BATCHES[:10]) for _ in range(2))
        found = list(store.leftovers([kept], ALWAYS_MS))
        assert {one.name for one in found} == {new_staging_file().name}
        assert {side_path(side.name) for side in staging_of(orphan).sides} < {one.path for one in found}
        for one in found:
            assert store.drop_leftover(one)
        assert read_staging_file(store, kept) == b"".join(BATCHES[:10])
        with pytest.raises(PartMissing):
            read_staging_file(store, orphan)
