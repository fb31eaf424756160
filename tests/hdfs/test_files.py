"""Small whole files and markers on HDFS: lost replies, rivals, dead holders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.errors import AlreadyExists, NotApplied, OutcomeUnknown, StoreError
from partfile.stores.hdfs import client
from partfile.stores.hdfs.client import HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.faults import ActAt, FailAt, Recorder, intercept
from support.sinks.distinct_life import live_and_check, take_over_and_check

if TYPE_CHECKING:
    from support.hdfs.cluster import HdfsCluster
    from support.hdfs.life import Opener


# Small whole files on HDFS: lost replies, rivals, what is left behind.

METADATA, DATA = "job/chk-1/_metadata", b"nonce"
RESET = OSError("connection reset")


@pytest.mark.parametrize("error", [RESET, FileNotFoundError("the second attempt found no source")])
def test_a_checkpoint_whose_reply_was_lost_is_known_by_its_bytes(opener: Opener, error: Exception) -> None:
    """The rename was done, and maybe repeated: the temporary file is gone and the name holds what was written."""
    opener(FailAt(1, error, applied=True, only={"rename"})).create_file(METADATA, DATA)
    assert opener().read_file(METADATA, 99) == DATA
    assert opener().list_names("job/chk-1") == ["_metadata"]


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
@pytest.mark.parametrize("error", [RESET, OSError("RPC listener disconnected")])
def test_a_checkpoint_is_created_although_the_network_failed_once(opener: Opener, call: str, error: Exception) -> None:
    """What was certainly not created is tried again, under another temporary name."""
    opener(FailAt(1, error, only={call})).create_file(METADATA, DATA)
    assert opener().read_file(METADATA, 99) == DATA
    assert opener().list_names("job/chk-1") == ["_metadata"]


def test_a_checkpoint_that_was_not_created_will_not_be_later(opener: Opener) -> None:
    """Deleting the temporary file decides: a rename that is still on its way finds nothing, so this is no unknown."""
    store = opener(FailAt(1, RESET, persistent=True, only={"rename"}))
    with pytest.raises(NotApplied) as raised:
        store.create_file(METADATA, DATA)
    assert not isinstance(raised.value, AlreadyExists)
    assert store.list_names("job/chk-1") == []
    opener().create_file(METADATA, DATA)


def test_a_checkpoint_that_a_rival_created_meanwhile_stays(opener: Opener) -> None:
    """The rival's bytes stay and ours are gone."""
    rival = ActAt(1, lambda: opener().create_file(METADATA, b"rival"), only={"rename"})
    with pytest.raises(AlreadyExists):
        opener(rival).create_file(METADATA, DATA)
    assert opener().read_file(METADATA, 99) == b"rival"
    assert opener().list_names("job/chk-1") == ["_metadata"]


def test_a_lost_reply_does_not_make_a_rivals_checkpoint_ours(opener: Opener) -> None:
    """The rename found no source, as after a repetition, but the name holds other bytes."""

    def meddle() -> None:
        other = opener()
        for name in other.list_names("job/chk-1"):
            other.delete_file(f"job/chk-1/{name}")
        other.create_file(METADATA, b"rival")

    with pytest.raises(AlreadyExists):
        opener(ActAt(1, meddle, only={"rename"})).create_file(METADATA, DATA)
    assert opener().read_file(METADATA, 99) == b"rival"


@pytest.mark.parametrize("call", ["create", "write", "sync"])
@pytest.mark.parametrize("applied", [False, True])
def test_what_fails_before_the_rename_was_not_applied(opener: Opener, call: str, applied: bool) -> None:
    """Nothing will ever rename the temporary file, so even a lost reply is a clear no; nothing is left behind."""
    store = opener(FailAt(1, RESET, applied=applied, persistent=True, only={call}))
    with pytest.raises(NotApplied):
        store.create_file(METADATA, DATA)
    assert [name for name in store.list_names("job/chk-1") if not name.startswith("_tmp.")] == []
    opener().create_file(METADATA, DATA)
    assert store.read_file(METADATA, 99) == DATA


@pytest.mark.parametrize("applied", [False, True])
def test_a_close_that_fails_is_done_by_hdfs(opener: Opener, applied: bool) -> None:
    """Every byte is durable by then, and no other process knows the temporary name: its lease is recovered instead."""
    store = opener(FailAt(1, RESET, applied=applied, only={"close"}))
    store.create_file(METADATA, DATA)
    assert store.read_file(METADATA, 99) == DATA
    assert store.list_names("job/chk-1") == ["_metadata"]


def test_a_checkpoint_that_cannot_be_looked_at_is_unknown(opener: Opener) -> None:
    """The network stays down after the rename: only then the caller must look for himself."""
    store = opener(FailAt(1, RESET, persistent=True, only={"rename", "delete", "status", "open"}))
    with pytest.raises(StoreError) as raised:
        store.create_file(METADATA, DATA)
    assert isinstance(raised.value, OutcomeUnknown)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("open", OSError("Connection refused")),
        ("open", FileNotFoundError("deleted since")),
        ("read", OSError("Connection refused")),
        ("delete", RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "denied")')),
    ],
)
def test_a_checkpoint_that_is_there_is_never_said_not_to_be(opener: Opener, call: str, error: Exception) -> None:
    """The rename was done and its reply lost; whatever then keeps us from looking, its caller must decide."""
    calls = intercept(HdfsCalls(opener().base.rpartition("/")[0], HdfsOptions()), FailAt(1, error, only={call}))
    lost = intercept(calls, FailAt(1, RESET, applied=True, only={"rename"}))
    with pytest.raises(OutcomeUnknown):
        HdfsStore(opener().base, calls=lost).create_file(METADATA, DATA)
    assert opener().read_file(METADATA, 99) == DATA


# Markers on HDFS whose holder has died: their lease can be had after a minute, and until then nothing waits for it.


def test_a_marker_that_was_refused_once_is_not_waited_for_again(
    hdfs: HdfsCluster, hdfs_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch asks for the marker: after a driver's death each would otherwise lose half a second for a minute."""
    # Long enough for a second attempt, however slowly a busy machine makes the first one.
    monkeypatch.setattr(client, "_LOOKERS_ARE_GONE_AFTER_S", 5.0)
    base = hdfs.url + hdfs_directory
    attempts = Recorder(only={"append"})
    calls = intercept(HdfsCalls(hdfs.url, HdfsOptions()), attempts)
    with HdfsStore(base) as holder, HdfsStore(base, calls=calls) as store:
        assert holder.hold_marker("_marker")
        assert not store.hold_marker("_marker")
        waited_for = attempts.count
        assert waited_for > 1
        assert not store.hold_marker("_marker")
        assert not store.hold_marker("_marker")
        assert attempts.count == waited_for + 2
        holder.close()
        assert store.hold_marker("_marker")


def test_distinct_rows(hdfs: HdfsCluster, hdfs_directory: str, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys lie beside the checkpoints, and are mapped from copies on this host."""
    options = {"http_address": hdfs.http_address}
    live_and_check(f"{hdfs.url}{hdfs_directory}", options, monkeypatch, lambda name: opener().list_names(name))


@pytest.mark.fault("D9")
def test_of_two_drivers_with_keys_the_second_fences_the_first(
    hdfs: HdfsCluster, hdfs_directory: str, opener: Opener
) -> None:
    """Though it has merged and deleted a run that the first one needs, and each key is there once."""
    options = {"http_address": hdfs.http_address}
    take_over_and_check(f"{hdfs.url}{hdfs_directory}", options, lambda name: opener().list_names(name))
