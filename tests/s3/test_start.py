"""What a sink learns of its S3 bucket at the start, and clients after a fork."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import ConfigError, StoreError
from partfile.sink.clock import system_clock_ms
from partfile.sink.coordinator import Runtime
from partfile.stores.registry import open_store
from partfile.stores.s3.client import this_process
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.store import neighbour, new_part
from support.processes.deadline import PATIENCE_S
from support.s3.life import Stream, options_of, store_options
from support.s3.proxy import S3Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import Store
    from partfile.stores.s3.options import S3Options
    from support.s3.server import S3Server


HOUR_S = 3600.0


def hazards(base: str, options: S3Options, *, now_ms: int | None = None, longest_open_s: float = HOUR_S) -> str:
    """What the store says, in one text."""
    with S3Store(base, options) as store:
        now_ms = system_clock_ms() if now_ms is None else now_ms
        return "\n".join(store.hazards(now_ms=now_ms, longest_open_s=longest_open_s))


def test_a_server_that_ignores_conditions_is_named(s3_server: S3Server, s3_base: str, s3_options: S3Options) -> None:
    """The report says what the server of each kind does not prevent."""
    text = hazards(s3_base, s3_options)
    expected = {"moto": "", "radosgw": "when an upload completes", "rclone": "only detected, not prevented"}
    assert expected[s3_server.name] in text
    assert ("If-None-Match" in text) is bool(expected[s3_server.name])


def test_a_lifecycle_rule_that_aborts_too_soon_is_named(moto: S3Server) -> None:
    """Uploads of parts that are still open would be gone; other prefixes and disabled rules do not count."""
    bucket = moto.bucket()
    base, options, client = f"s3://{bucket}/landing/x", options_of(moto), moto.filesystem()
    assert "no lifecycle rule" in hazards(base, options)

    def rule(days: int, prefix: str = "", status: str = "Enabled") -> None:
        rules = [
            {
                "ID": "abort",
                "Status": status,
                "Filter": {"Prefix": prefix},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
            }
        ]
        client.call_s3("put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration={"Rules": rules})

    rule(7)
    assert "lifecycle" not in hazards(base, options)
    assert "after 7 days" in hazards(base, options, longest_open_s=8 * 24 * HOUR_S)
    rule(1, "landing/")
    assert "after 1 days" in hazards(base, options, longest_open_s=24 * HOUR_S)
    rule(1, "elsewhere/")
    assert "no lifecycle rule" in hazards(base, options)
    rule(7, status="Disabled")
    assert "no lifecycle rule" in hazards(base, options)


def test_versions_and_clocks_are_named(moto: S3Server) -> None:
    """What is kept for ever costs for ever; a clock that is wrong deceives the cleaner."""
    bucket = moto.bucket()
    base, options = f"s3://{bucket}/x", options_of(moto)
    assert "versions" not in (text := hazards(base, options))
    assert "clocks" not in text
    moto.filesystem().call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert "versions" in hazards(base, options)
    assert "clocks" in hazards(base, options, now_ms=system_clock_ms() - 120_000)


def test_a_sink_says_at_its_start_what_can_hurt_it(moto: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """Once a start, in the log, and without any secret; the sink itself shows none either."""
    options = store_options(moto)
    sink = pf.FileSink(f"s3://{moto.bucket()}/x", uid="u", format="text", storage_options=options)
    with caplog.at_level(logging.DEBUG, "partfile"), sink.local():
        pass
    assert sum("lifecycle" in record.getMessage() for record in caplog.records) == 1
    shown = f"{caplog.text} {sink!r} {sink.settings!r}"
    assert str(options["secret"]) not in shown


def test_tasks_keep_leased_parts_open_only_if_markers_are_locks(moto: S3Server, tmp_path: Path) -> None:
    """R13: a marker on S3 proves nothing of local locks; parts on S3 need none, for they are claimed."""
    for base, checkpoints, expected in (
        (f"s3://{moto.bucket()}/x", None, True),
        (str(tmp_path / "base"), f"s3://{moto.bucket()}/x", False),
        (f"s3://{moto.bucket()}/x", str(tmp_path / "checkpoints"), True),
    ):

        def opener(url: str, _options: object) -> Store:
            return open_store(url, store_options(moto) if url.startswith("s3") else {})

        sink = pf.FileSink(base, uid="u", format="text", checkpoint_dir=checkpoints, open_store=opener)
        runtime = Runtime(sink.settings, "u")
        assert runtime.may_append
        assert runtime.tasks_may_keep is expected
        runtime.close()


def test_the_probe_leaves_nothing_and_asks_once(moto: S3Server) -> None:
    """Another store of the process knows what the first one has found out."""
    with S3Proxy(moto) as proxy:
        base, options = f"s3://{moto.bucket()}/x", options_of(proxy)
        for _ in range(2):
            with S3Store(base, options) as store:
                assert store.capabilities.no_replace
                assert store.list_names("") == []
        assert proxy.count()["CreateMultipartUpload"] == 1
        assert proxy.count()["PutObject"] <= 4


@pytest.mark.fault("N11")
def test_an_s3_bucket_that_is_not_there_is_an_error_of_ours(moto: S3Server) -> None:
    """N11: named, and nothing but a StoreError or ConfigError."""
    store = S3Store("s3://no-such-bucket-here/x", options_of(moto))
    with pytest.raises((StoreError, ConfigError), match="bucket"):
        store.create_file("x", b"")
    with pytest.raises((StoreError, ConfigError), match="bucket"):
        S3Store("s3://no-such-bucket-here/x", options_of(moto), create_base=False)


def test_a_base_that_must_be_there_is_looked_for(moto: S3Server) -> None:
    """For reading, where an empty prefix is a wrong URL."""
    base, options = f"s3://{moto.bucket()}/x", options_of(moto)
    with pytest.raises(StoreError, match="nothing is below"):
        S3Store(base, options, create_base=False)
    with S3Store(base, options) as store:
        store.create_file("a", b"1")
    with S3Store(base, options, create_base=False) as store:
        assert store.read_file("a", 1) == b"1"


@pytest.mark.fault("N6")
def test_wrong_credentials_are_denied_at_once(radosgw: S3Server) -> None:
    """N6: not asked again until the deadline, and the secret is not shown."""
    wrong = "wrong-secret"
    options = options_of(radosgw, secret=wrong)
    with S3Store(f"s3://{radosgw.bucket()}/x", options) as store, pytest.raises(StoreError) as raised:
        store.create_file("x", b"")
    assert wrong not in str(raised.value)
    assert "credentials" in raised.value.hint


@pytest.mark.fault("N10")
def test_a_forked_child_uses_a_client_of_its_own(moto: S3Server) -> None:
    """N10: also through the very store that the parent has used before."""
    base, options = f"s3://{moto.bucket()}/x", options_of(moto)
    with S3Store(base, options) as store:
        store.create_file("a", b"from the parent")

        def work(_other: Any) -> str:
            store.create_file("b", b"from the child")
            return store.read_file("a", 99).decode()

        with neighbour(lambda: S3Store(base, options), work) as result:
            assert result == "from the parent"
        assert store.read_file("b", 99) == b"from the child"


def test_a_fork_while_parts_are_written_leaves_no_lock_held(moto: S3Server) -> None:
    """N10: another thread of the parent may be inside the store at that instant."""
    base, options = f"s3://{moto.bucket()}/x", options_of(moto)
    with S3Store(base, options) as store, store._budgets.get()._lock, store._garbages.get()._lock:

        def work(_other: Any) -> int:
            stream = store.create(new_part())
            stream.write(b"abc")
            store.publish(stream.close_for_commit(), "auto")
            return len(list(store.list()))

        with neighbour(lambda: S3Store(base, options), work) as result:
            assert result == 1


@pytest.mark.fault("N10")
def test_a_forked_child_closes_nothing_of_its_parent(moto: S3Server) -> None:
    """N10: the inherited client shares sockets and an event queue with the parent's, so it is left as it is."""
    base, options = f"s3://{moto.bucket()}/x", options_of(moto)
    with S3Store(base, options) as store:
        store.create_file("a", b"1")
        inherited = weakref.ref(this_process().client(options).files)

        def work(other: Store) -> bool:
            assert other.file_exists("a")
            gc.collect()
            return inherited() is not None

        with neighbour(lambda: S3Store(base, options), work) as result:
            assert result is True
        assert store.file_exists("a")


def _read(base: str, options: dict[str, object]) -> None:
    with open_store(base, options) as store:
        assert store.read_file("a", 1) == b"1"


@pytest.mark.fault("N10", "D18")
def test_a_spawned_child_opens_the_store_from_its_url(moto: S3Server) -> None:
    """N10, D18: what travels is the URL and the options, no connection."""
    base, options = f"s3://{moto.bucket()}/x", store_options(moto)
    with open_store(base, options) as store:
        store.create_file("a", b"1")
    process = multiprocessing.get_context("spawn").Process(target=_read, args=(base, options))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_the_life_cycle_on_each_server(s3_server: S3Server) -> None:
    """Every row once, on servers that honour all, some or none of the preconditions; a restart changes nothing."""
    stream = Stream(f"s3://{s3_server.bucket()}/base", options_of(s3_server))
    stream.run_to_the_end()
    stream.assert_exactly_once()
    files = stream.finished()
    assert len(files) == (8 if s3_server.name == "rclone" else 2)
    stream.run_to_the_end()
    assert stream.finished() == files
    url = S3Url.of(stream.base)
    uploads = s3_server.filesystem().call_s3("list_multipart_uploads", Bucket=url.bucket)
    assert not uploads.get("Uploads")
