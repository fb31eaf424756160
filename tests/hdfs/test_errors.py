"""What hdfs-native raises on a real HDFS, sorted; the rest of the table by the words of Hadoop's sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hdfs_native
import pytest
from hdfs_native import WriteOptions

from partfile.errors import AlreadyExists, ConfigError, LeaseUnavailable, NotApplied, NotFound, NotReady, OutcomeUnknown
from partfile.stores.hdfs.errors import Verdict, error_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.errors import PartfileError
    from support.hdfs.cluster import HdfsCluster


NEW = WriteOptions(overwrite=False, create_parent=True)
NO_RETRIES = {"dfs.client.failover.max.attempts": "0"}


@pytest.fixture
def client(hdfs: HdfsCluster) -> hdfs_native.Client:
    return hdfs_native.Client(hdfs.url)


def raised_by(work: Callable[[], object]) -> Exception:
    """What a call of hdfs-native raises."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any of them is what the test is about.
        work()
    assert isinstance(raised.value, Exception)
    return raised.value


def test_what_the_servers_say_is_sorted(client: hdfs_native.Client, hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Each call fails on the real NameNode or DataNode in one way that the store must tell from the others."""
    client.create(f"{hdfs_directory}/closed", NEW).close()
    client.mkdirs(f"{hdfs_directory}/dir/below", create_parent=True)
    opened = client.create(f"{hdfs_directory}/open", NEW)
    opened.hsync()
    other = hdfs_native.Client(hdfs.url)
    deleted = client.create(f"{hdfs_directory}/deleted", NEW)
    client.delete(f"{hdfs_directory}/deleted")
    at = hdfs_directory
    calls: list[tuple[Verdict, Callable[[], object]]] = [
        (Verdict.MISSING, lambda: client.get_file_info(f"{at}/missing")),
        (Verdict.MISSING, lambda: client.append(f"{at}/missing")),
        (Verdict.MISSING, lambda: client.recover_lease(f"{at}/missing")),
        (Verdict.MISSING, lambda: client.read(f"{at}/missing")),
        (Verdict.MISSING, lambda: client.rename(f"{at}/missing", f"{at}/x")),
        (Verdict.MISSING, deleted.hsync),
        (Verdict.TAKEN, lambda: client.create(f"{at}/closed", NEW)),
        (Verdict.TAKEN, lambda: other.create(f"{at}/open", NEW)),
        (Verdict.TAKEN, lambda: client.create(f"{at}/dir", NEW)),
        (Verdict.TAKEN, lambda: client.rename(f"{at}/open", f"{at}/closed")),
        (Verdict.TAKEN, lambda: client.rename(f"{at}/closed", f"{at}/dir")),
        (Verdict.LEASED, lambda: client.append(f"{at}/open")),
        (Verdict.LEASED, lambda: other.append(f"{at}/open")),
        (Verdict.BELOW_A_FILE, lambda: client.create(f"{at}/closed/below", NEW)),
        (Verdict.REFUSED, lambda: client.create(f"{at}/a:b", NEW)),
        (Verdict.REFUSED, lambda: client.create(f"{at}/{'x' * 256}", NEW)),
        (Verdict.REFUSED, lambda: client.delete(f"{at}/dir")),
        (Verdict.UNKNOWN, lambda: hdfs_native.Client("hdfs://127.0.0.1:9", NO_RETRIES).get_file_info("/")),
        (Verdict.MISCONFIGURED, lambda: hdfs_native.Client("hdfs://no-such-service", NO_RETRIES)),
    ]
    for number, (verdict, call) in enumerate(calls):
        error = raised_by(call)
        assert verdict_of(error) is verdict, f"call {number}: {error!r}"
        assert "\tat " not in str(error_of(error, "do", at, reads=False))


def test_a_lease_that_is_being_recovered_is_leased(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Appending while HDFS closes a file is no unknown outcome."""
    client, path = hdfs_native.Client(own_hdfs.url), f"{own_hdfs_directory}/part"
    writer = client.create(path, NEW)
    writer.write(b"x")
    writer.hsync()
    # The DataNode does the recovery: while it is paused, the recovery cannot end before the call.
    own_hdfs.pause_datanode()
    assert client.recover_lease(path) is False
    assert verdict_of(raised_by(lambda: client.append(path))) is Verdict.LEASED


def test_a_lease_that_expired_is_leased(client: hdfs_native.Client, hdfs_directory: str) -> None:
    """Writing on after a file was closed is no unknown outcome."""
    closed = client.create(f"{hdfs_directory}/closed", NEW)
    closed.close()
    assert verdict_of(raised_by(lambda: closed.write(b"x"))) is Verdict.LEASED


JAVA = [
    ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", Verdict.UNREADY),
    ("org.apache.hadoop.ipc.RetriableException", Verdict.UNREADY),
    ("org.apache.hadoop.ipc.StandbyException", Verdict.UNREADY),
    ("org.apache.hadoop.hdfs.protocol.RecoveryInProgressException", Verdict.LEASED),
    ("org.apache.hadoop.security.AccessControlException", Verdict.DENIED),
    ("org.apache.hadoop.security.token.SecretManager$InvalidToken", Verdict.DENIED),
    ("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", Verdict.FULL),
    ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", Verdict.FULL),
    ("java.lang.NullPointerException", Verdict.UNKNOWN),
    ("java.io.IOException", Verdict.UNKNOWN),
]


@pytest.mark.parametrize(("java_class", "verdict"), JAVA)
@pytest.mark.parametrize("kind", ["RPCError", "FatalRPCError"])
def test_java_classes_are_read_from_the_text(java_class: str, verdict: Verdict, kind: str) -> None:
    """By the class that was thrown, not by one that the message or the stack trace mentions."""
    error = RuntimeError(f'{kind}("{java_class}", "of StandbyException\\n\\tat org.SafeModeException.x(Y.java:1)")')
    assert verdict_of(error) is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("File /x could only be written to 0 of the 1 minReplication nodes.", Verdict.FULL),
        ("append: lastBlock=blk_1 of src=/x is not sufficiently replicated yet.", Verdict.UNREADY),
        ("Source /x and destination /y must both be directories", Verdict.TAKEN),
    ],
)
def test_plain_exceptions_are_told_apart_by_their_words(text: str, verdict: Verdict) -> None:
    """The NameNode throws a bare IOException for what deserves a class of its own."""
    assert verdict_of(RuntimeError(f'RPCError("java.io.IOException", "{text}")')) is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('DataTransferError("All nodes failed for write")', Verdict.UNKNOWN),
        ('OperationFailed("Failed to complete file in time")', Verdict.UNREADY),
        ('OperationFailed("anything else")', Verdict.UNKNOWN),
        ('UnsupportedFeature("hsync of erasure coded files")', Verdict.REFUSED),
        ('InvalidArgument("No NameNode hosts found")', Verdict.MISCONFIGURED),
        ("GSSAPIError(NoCred, 0, no ticket)", Verdict.DENIED),
        ("", Verdict.UNKNOWN),
    ],
)
def test_errors_of_the_clients_own_are_sorted(text: str, verdict: Verdict) -> None:
    """What is in no list counts as unknown."""
    assert verdict_of(RuntimeError(text)) is verdict


@pytest.mark.parametrize(
    ("error", "reads", "kind"),
    [
        (FileNotFoundError("x"), False, NotFound),
        (FileExistsError("x"), False, AlreadyExists),
        (FileExistsError("Failed to APPEND_FILE x"), False, LeaseUnavailable),
        (OSError("Connection refused"), False, OutcomeUnknown),
        (OSError("Connection refused"), True, NotApplied),
        (RuntimeError('RPCError("a.SafeModeException", "x")'), False, NotReady),
        (RuntimeError('RPCError("a.AccessControlException", "x")'), False, NotApplied),
        (RuntimeError('InvalidArgument("x")'), True, ConfigError),
    ],
)
def test_each_verdict_is_an_error_of_ours(error: Exception, reads: bool, kind: type[PartfileError]) -> None:
    """Only what HDFS answered counts as not applied, unless the call only reads; the path is named."""
    ours = error_of(error, "rename", "hdfs://nn/base/part", reads=reads)
    assert type(ours) is kind
    assert "hdfs://nn/base/part" in str(ours)
    assert ours.path == "hdfs://nn/base/part"
