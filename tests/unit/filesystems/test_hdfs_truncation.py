"""What an attempt to truncate that was in vain means for those after it."""

from __future__ import annotations

import getpass
import os
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from free_ports import free_port
from webhdfs_stub import DONE, remote, serving

from partfile.errors import LeaseUnavailable, NotApplied, NotFound, NotReady
from partfile.stores.hdfs import webhdfs as hdfs_truncation
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.hdfs.webhdfs import HdfsTruncation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.stores.hdfs.webhdfs import WebHdfs


def unreachable() -> HdfsTruncation:
    options = HdfsOptions(http_address=f"127.0.0.1:{free_port()}", call_timeout_s=2)
    return HdfsTruncation("hdfs://127.0.0.1:1", options)


@pytest.mark.parametrize("forget_s", [60.0, 0.0])
def test_a_server_that_is_away_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch, forget_s: float) -> None:
    """It may be a NameNode that restarts: parts are copied meanwhile, and cut in place again later."""
    monkeypatch.setattr(hdfs_truncation, "_FORGET_S", forget_s)
    truncation = unreachable()
    assert truncation.is_possible
    with pytest.raises(NotApplied, match="refused"):
        truncation.truncate("/a", 1)
    assert truncation.is_possible is (forget_s == 0.0)


@pytest.mark.parametrize("answer", [None, (404, b"<html>")])
def test_what_has_to_be_configured_is_never_asked_again(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes] | None
) -> None:
    """No time mends that there is no address, or that it is of another web server."""
    monkeypatch.setattr(hdfs_truncation, "_FORGET_S", 0.0)
    with serving(*(answer or DONE)) as server:
        options = HdfsOptions(http_address=str(server.address)) if answer else HdfsOptions(config_dir="/nonexistent")
        truncation = HdfsTruncation("hdfs://nowhere", options)
        assert truncation.is_possible
        for _ in range(2):
            with pytest.raises(NotApplied):
                truncation.truncate("/a", 1)
            assert not truncation.is_possible
        assert len(server.asked) == (1 if answer else 0)


@pytest.mark.parametrize(
    ("java_class", "kind"),
    [
        ("java.io.FileNotFoundException", NotFound),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", NotReady),
        ("org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", LeaseUnavailable),
        ("org.apache.hadoop.security.AccessControlException", NotApplied),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", NotApplied),
    ],
)
def test_what_hdfs_says_of_one_file_stops_nobody_from_cutting_another(java_class: str, kind: type[NotApplied]) -> None:
    """A directory with another owner, or a quota, is no reason to copy every part of the base."""
    with serving(403, remote(java_class)) as server:
        truncation = HdfsTruncation("hdfs://nn", HdfsOptions(http_address=str(server.address)))
        with pytest.raises(NotApplied) as refused:
            truncation.truncate("/a", 1)
        assert type(refused.value) is kind
        assert truncation.is_possible
        server.status, server.body = DONE
        assert truncation.truncate("/b", 1)


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 54321"), OSError("No username set")])
def test_a_process_without_a_name_sends_none(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """As in a container whose uid nobody has given a name: HDFS then says who it takes it for."""

    def nameless() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    with serving(*DONE) as server:
        assert HdfsStore("hdfs://nn/base", HdfsOptions(http_address=str(server.address))).capabilities.truncate
        assert HdfsTruncation("hdfs://nn", HdfsOptions(http_address=str(server.address))).truncate("/a", 1)
    assert server.asked == ["/webhdfs/v1/a?op=TRUNCATE&newlength=1"]


def test_a_child_that_was_forked_while_somebody_connected_connects_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that another thread of the parent held at that moment stays held in the child."""
    connect, parent = hdfs_truncation.connect_to_web, os.getpid()
    inside, leave = threading.Event(), threading.Event()

    def slow(url: str, options: HdfsOptions) -> WebHdfs:
        if os.getpid() == parent:
            inside.set()
            leave.wait(30)
        return connect(url, options)

    monkeypatch.setattr(hdfs_truncation, "connect_to_web", slow)
    with serving(*DONE) as server:
        truncation = HdfsTruncation("hdfs://nn", HdfsOptions(http_address=str(server.address)))
        thread = threading.Thread(target=truncation.truncate, args=("/parent", 1))
        thread.start()
        assert inside.wait(10)
        with neighbour_process(lambda: truncation.is_possible and truncation.truncate("/child", 1)) as ended:
            assert ended(10)
        leave.set()
        thread.join()


def test_what_failed_for_another_file_is_told_as_that() -> None:
    """The second file was not tried; the message says so, and gives one hint."""
    truncation = unreachable()
    with pytest.raises(NotApplied):
        truncation.truncate("/first", 1)
    with pytest.raises(NotApplied, match=r"'/second' cannot be cut to 2 bytes: .* failed before: .*'/first'") as told:
        truncation.truncate("/second", 2)
    assert str(told.value).count("Hint:") == 1


@contextmanager
def neighbour_process(work: Callable[[], bool]) -> Iterator[Callable[[float], bool]]:
    """A forked child that does the work; yields how to wait for its end, which says whether it succeeded in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)

    def ended(timeout_s: float) -> bool:
        ends_at_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_at_s:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                return code == 0
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False

    yield ended
