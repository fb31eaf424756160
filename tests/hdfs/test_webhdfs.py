"""Truncate over WebHDFS on a real NameNode: what it does, how it is refused, and what is known when it goes away."""

from __future__ import annotations

import getpass
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import hdfs_native
import pytest

from partfile.errors import ConfigError, LeaseUnavailable, NotApplied, NotFound, NotReady, OutcomeUnknown
from partfile.stores.hadoop import read_configuration
from partfile.stores.hdfs.options import web_address, web_addresses
from partfile.stores.hdfs.webhdfs import WebHdfs

if TYPE_CHECKING:
    from support.hdfs.cluster import HdfsCluster


TIMEOUT_S = PATIENCE_S = 60.0
"""For what takes a second on a machine without other load."""
SILENCE_S = 3.0
"""How long a request waits that is not answered: long enough for it to be sent on a busy machine."""
BLOCK_BYTES = 1 << 20


def connect(cluster: HdfsCluster, user: str | None = None) -> WebHdfs:
    """A client that finds the NameNode by the cluster's own configuration."""
    environment = {"HADOOP_CONF_DIR": str(cluster.configuration_directory)}
    return WebHdfs(web_addresses(cluster.url, read_configuration(environment)), user=user or getpass.getuser())


def create(cluster: HdfsCluster, path: str, data: bytes) -> str:
    """Create a closed file; returns its path."""
    options = hdfs_native.WriteOptions(block_size=BLOCK_BYTES, overwrite=True)
    # A cluster that has just started may take long to hear of a block, which hdfs-native does not wait for.
    for tries_left in reversed(range(4)):
        try:
            with hdfs_native.Client(cluster.url).create(path, options) as file:
                file.write(data)
            break
        except RuntimeError as error:
            if not tries_left or "complete file in time" not in str(error):
                raise
            time.sleep(1)
    return path


def read(cluster: HdfsCluster, path: str) -> bytes:
    """All bytes of a file."""
    return hdfs_native.Client(cluster.url).read(path).read()


def length_of(cluster: HdfsCluster, path: str) -> int:
    """The length of a file as the NameNode has it."""
    return hdfs_native.Client(cluster.url).get_file_info(path).length


def truncate_to_the_end(web: WebHdfs, path: str, length_bytes: int) -> None:
    """Repeat the call until the cut has finished."""
    ends_at_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at_s:
        with suppress(NotReady):
            if web.truncate(path, length_bytes, TIMEOUT_S):
                return
        time.sleep(0.05)
    pytest.fail("the cut never finished")


@pytest.mark.parametrize("length_bytes", [2 * BLOCK_BYTES + 100, 2 * BLOCK_BYTES, BLOCK_BYTES, 0])
def test_a_cut_that_needs_no_datanode_is_finished_at_once(
    hdfs: HdfsCluster, hdfs_directory: str, length_bytes: int
) -> None:
    """To the length it has, to a border between blocks and to nothing: done with the first answer, and appendable."""
    data = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"x" * 100
    path = create(hdfs, f"{hdfs_directory}/part", data)
    assert connect(hdfs).truncate(path, length_bytes, TIMEOUT_S) is True
    assert read(hdfs, path) == data[:length_bytes]
    with hdfs_native.Client(hdfs.url).append(path) as file:
        file.write(b"more")
    assert read(hdfs, path) == data[:length_bytes] + b"more"


@pytest.mark.fault("F9")
def test_a_cut_inside_a_block_begins_and_then_finishes(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The first answer says begun, no process can append meanwhile; the one that says finished means it."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/part", b"abcdefghij")
    # The DataNode cuts: while it is paused, the cut cannot end before the next call.
    own_hdfs.pause_datanode()
    assert web.truncate(path, 4, TIMEOUT_S) is False
    with pytest.raises(RuntimeError, match="RecoveryInProgress"):
        hdfs_native.Client(own_hdfs.url).append(path)
    own_hdfs.resume_datanode()
    truncate_to_the_end(web, path, 4)
    with hdfs_native.Client(own_hdfs.url).append(path) as file:
        file.write(b"K")
    assert read(own_hdfs, path) == b"abcdK"


def test_a_cut_of_a_file_in_a_snapshot_is_not_finished_before_it_can_be_appended_to(
    hdfs: HdfsCluster, hdfs_directory: str
) -> None:
    """HDFS then cuts a copy and shows the length at once: only a repeated call tells when it has finished."""
    web = connect(hdfs)
    path = create(hdfs, f"{hdfs_directory}/part", b"abcdefghij")
    hdfs.create_snapshot(hdfs_directory, "before")
    assert web.truncate(path, 4, TIMEOUT_S) is False
    assert length_of(hdfs, path) == 4
    # On a busy machine the cut may have finished before the test looks.
    try:
        hdfs_native.Client(hdfs.url).append(path).close()
    except RuntimeError as error:
        assert "RecoveryInProgress" in str(error)  # noqa: PT017 - it need not be raised.
    truncate_to_the_end(web, path, 4)
    hdfs_native.Client(hdfs.url).append(path).close()
    assert read(hdfs, path) == b"abcd"
    assert read(hdfs, f"{hdfs_directory}/.snapshot/before/part") == b"abcdefghij"


def test_a_cut_beyond_the_end_is_refused(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """HDFS never makes a file longer; nothing happens."""
    path = create(hdfs, f"{hdfs_directory}/part", b"abc")
    with pytest.raises(NotApplied, match="larger file size"):
        connect(hdfs).truncate(path, 4, TIMEOUT_S)
    assert read(hdfs, path) == b"abc"


def test_another_length_while_a_cut_goes_on_has_to_wait(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Of two who cut one file to two lengths at once, the second is not ready, and the first cut is what happens."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/part", b"abcdefghij")
    # The DataNode cuts: while it is paused, the first cut cannot end before the second is asked for.
    own_hdfs.pause_datanode()
    assert web.truncate(path, 4, TIMEOUT_S) is False
    with pytest.raises(NotReady, match="being truncated"):
        web.truncate(path, 3, TIMEOUT_S)
    own_hdfs.resume_datanode()
    truncate_to_the_end(web, path, 4)
    assert read(own_hdfs, path) == b"abcd"


def test_an_open_file_is_not_cut(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Who holds the lease is safe from it, even where nothing would have to be cut off."""
    path = f"{hdfs_directory}/part"
    client = hdfs_native.Client(hdfs.url)
    with client.create(path) as file:
        file.write(b"abc")
        file.hsync()
        for length_bytes in (0, 1, 3):
            with pytest.raises(LeaseUnavailable, match="lease is currently owned"):
                connect(hdfs).truncate(path, length_bytes, TIMEOUT_S)
    assert read(hdfs, path) == b"abc"


def test_a_file_whose_lease_is_being_recovered_is_not_ready(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Until the recovery is over the call says so, and changes nothing; afterwards it works."""
    path = f"{own_hdfs_directory}/part"
    client = hdfs_native.Client(own_hdfs.url)
    file = client.create(path)
    file.write(b"abcdef")
    file.hsync()
    web = connect(own_hdfs)
    # The DataNode does the recovery: while it is paused, the recovery cannot end before the call.
    own_hdfs.pause_datanode()
    assert client.recover_lease(path) is False
    with pytest.raises(NotReady, match="recovery is in progress"):
        web.truncate(path, 3, TIMEOUT_S)
    own_hdfs.resume_datanode()
    ends_at_s = time.monotonic() + PATIENCE_S
    while not client.recover_lease(path):
        assert time.monotonic() < ends_at_s
        time.sleep(0.1)
    truncate_to_the_end(web, path, 3)
    assert read(own_hdfs, path) == b"abc"


def test_who_may_not_write_is_told_what_to_do(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Another user is refused by the NameNode, and the file stays as it is."""
    path = create(hdfs, f"{hdfs_directory}/part", b"abc")
    with pytest.raises(NotApplied, match="Permission denied: user=nobody") as refused:
        connect(hdfs, user="nobody").truncate(path, 0, TIMEOUT_S)
    assert "delegation_token" in refused.value.hint
    assert read(hdfs, path) == b"abc"


def test_a_missing_file_and_a_directory_are_not_there_to_be_cut(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Neither is a file; both are told by NotFound."""
    web = connect(hdfs)
    for path in (f"{hdfs_directory}/none", hdfs_directory):
        with pytest.raises(NotFound):
            web.truncate(path, 0, TIMEOUT_S)


@pytest.mark.parametrize("name", ["with blank", "100%41", "täg=ü☃", "a+b&c=d;e?f#g", "quote'\"[]{}|\\^~`", "%2e%2e"])
def test_a_name_of_any_characters_reaches_the_namenode_as_it_is(
    hdfs: HdfsCluster, hdfs_directory: str, name: str
) -> None:
    """What would mean something in a URL means nothing here; the file of that very name is cut, and no other."""
    path = create(hdfs, f"{hdfs_directory}/{name}", b"abc")
    assert connect(hdfs).truncate(path, 0, TIMEOUT_S)
    assert [status.path for status in hdfs_native.Client(hdfs.url).list_status(hdfs_directory)] == [path]
    assert read(hdfs, path) == b""


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a//b", "/a/\nb", "/a/./b", "/\ud800"])
def test_a_path_that_would_name_another_file_is_refused(hdfs: HdfsCluster, path: str) -> None:
    """A path is absolute and literal, or nothing is sent."""
    with pytest.raises(ConfigError):
        connect(hdfs).truncate(path, 0, TIMEOUT_S)


def test_safe_mode_is_not_ready(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Nothing happens in safe mode, and afterwards the same call works."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/safe", b"abc")
    with own_hdfs.safe_mode():
        with pytest.raises(NotReady, match="safe mode"):
            web.truncate(path, 0, TIMEOUT_S)
        assert length_of(own_hdfs, path) == 3
    assert web.truncate(path, 0, TIMEOUT_S)


def test_a_killed_namenode_was_never_asked(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """A refused connection proves that nothing happened, and is reported at once."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/killed", b"abc")
    own_hdfs.kill_namenode()
    began_s = time.monotonic()
    with pytest.raises(NotApplied, match="refused"):
        web.truncate(path, 0, 10 * PATIENCE_S)
    assert time.monotonic() - began_s < PATIENCE_S
    own_hdfs.mend()
    assert read(own_hdfs, path) == b"abc"


def test_a_namenode_that_falls_silent_leaves_the_outcome_unknown(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """A request that was taken and not answered may be done later, and here it is."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/silent", b"abc")
    own_hdfs.pause_namenode()
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="no answer in time"):
        web.truncate(path, 0, SILENCE_S)
    assert time.monotonic() - began_s < PATIENCE_S
    own_hdfs.resume_namenode()
    ends_at_s = time.monotonic() + PATIENCE_S
    while length_of(own_hdfs, path):
        assert time.monotonic() < ends_at_s
        time.sleep(0.05)


def test_a_namenode_killed_while_it_is_asked_leaves_the_outcome_unknown(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """The connection ends without an answer; the call can be repeated when the NameNode is back."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/asked", b"abc")
    own_hdfs.pause_namenode()
    # Once the request is there, which the NameNode does not read.
    killer = threading.Timer(SILENCE_S, own_hdfs.kill_namenode)
    killer.start()
    with pytest.raises(OutcomeUnknown):
        web.truncate(path, 0, TIMEOUT_S)
    killer.join()
    own_hdfs.mend()
    assert web.truncate(path, 0, TIMEOUT_S)


def test_a_starting_namenode_is_not_ready(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """From its first answer until it has left safe mode it refuses, and never in another way."""
    web = connect(own_hdfs)
    path = create(own_hdfs, f"{own_hdfs_directory}/starting", b"abc")
    # It stays in safe mode until a DataNode tells it of the block, so that the test cannot miss it.
    own_hdfs.kill_datanode()
    own_hdfs.kill_namenode()
    own_hdfs.start_namenode()
    refusals: set[str] = set()
    ends_at_s = time.monotonic() + 120
    while time.monotonic() < ends_at_s:
        try:
            assert web.truncate(path, 0, TIMEOUT_S)
            break
        except (NotApplied, OutcomeUnknown) as error:
            if "NotReady" not in refusals and isinstance(error, NotReady):
                own_hdfs.start_datanode()
            refusals.add(type(error).__name__)
            time.sleep(0.02)
    assert "NotReady" in refusals
    assert refusals <= {"NotReady", "Unreachable"}
    own_hdfs.wait_until_ready()
    assert read(own_hdfs, path) == b""


def test_the_web_server_of_a_datanode_knows_no_truncate(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """An address that serves something else proves that nothing happened, and tells it from a missing file."""
    wrong = WebHdfs([web_address(hdfs.datanode_http_address)])
    with pytest.raises(NotApplied, match="Invalid operation"):
        wrong.truncate(f"{hdfs_directory}/part", 0, TIMEOUT_S)
