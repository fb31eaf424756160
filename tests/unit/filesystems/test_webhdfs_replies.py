"""What a WebHDFS server answers, sorted into the tree of errors."""

from __future__ import annotations

import json

import pytest
from webhdfs_stub import TIMEOUT_S, nobody, remote, serving

from partfile.errors import ConfigError, LeaseUnavailable, NotApplied, NotFound, NotReady, OutcomeUnknown, PartfileError
from partfile.stores.hdfs.webhdfs import MAX_REPLY_BYTES, Unreachable, WebHdfs


def refusal(status: int, body: bytes) -> PartfileError:
    """The error of a truncate that was answered like this."""
    with serving(status, body) as server, pytest.raises(PartfileError) as refused:
        WebHdfs([server.address]).truncate("/part", 0, TIMEOUT_S)
    return refused.value


@pytest.mark.parametrize(
    ("java_class", "kind"),
    [
        ("java.io.FileNotFoundException", NotFound),
        ("org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", LeaseUnavailable),
        ("org.apache.hadoop.hdfs.protocol.RecoveryInProgressException", NotReady),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", NotReady),
        ("org.apache.hadoop.ipc.RetriableException", NotReady),
        ("org.apache.hadoop.security.AccessControlException", NotApplied),
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken", NotApplied),
        ("java.lang.UnsupportedOperationException", NotApplied),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", NotApplied),
        ("java.io.IOException", OutcomeUnknown),
        ("java.lang.NullPointerException", OutcomeUnknown),
    ],
)
@pytest.mark.parametrize("status", [400, 403, 500])
def test_the_java_class_decides_whatever_the_http_status(
    status: int, java_class: str, kind: type[PartfileError]
) -> None:
    """Each class has its kind of error with the server's words in it; one that nobody sorted may have happened."""
    error = refusal(status, remote(java_class))
    assert type(error) is kind
    assert "said the server" in error.message
    assert error.path == "/part"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, ConfigError),
        (403, ConfigError),
        (404, ConfigError),
        (405, ConfigError),
        (307, ConfigError),
        (500, OutcomeUnknown),
        (502, OutcomeUnknown),
        (599, OutcomeUnknown),
        (200, OutcomeUnknown),
    ],
)
@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"RemoteException": 1}', b"[" * 100_000, b"\xff"])
def test_without_hadoops_words_the_status_decides_and_404_is_not_about_the_file(
    status: int, body: bytes, kind: type[PartfileError]
) -> None:
    """A web server that is no WebHDFS must not be taken for one that misses the file."""
    error = refusal(status, body)
    assert type(error) is kind
    assert f"HTTP {status}" in error.message


@pytest.mark.parametrize("body", [b'{"boolean":1}', b'{"boolean":"true"}', b'{"boolean":tru', b'{"boolean":null}'])
def test_only_a_true_answer_counts_as_done(body: bytes) -> None:
    """Anything but JSON's own true and false says nothing."""
    assert type(refusal(200, body)) is OutcomeUnknown


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    """A server that sends megabytes has not answered."""
    assert type(refusal(200, b'{"boolean":true}' + b" " * (2 * MAX_REPLY_BYTES))) is OutcomeUnknown


def read_of(datanode: tuple[int, bytes], *, is_named: bool = True) -> tuple[bytes, list[str], list[str]]:
    """What a read gets where the NameNode names a DataNode that answers like this, and what each was asked."""
    with serving(*datanode) as data:
        location = {"Location": f"{data.address}/webhdfs/v1/part?op=OPEN&offset=7&length=9"} if is_named else {}
        with serving(200, json.dumps(location).encode()) as names:
            got = WebHdfs([names.address], user="me").read("/part", 7, 9, TIMEOUT_S)
    return got, names.asked, data.asked


def test_a_read_asks_the_datanode_that_the_namenode_names() -> None:
    """Without following a redirection: the NameNode's answer says where, and the bytes are the DataNode's."""
    got, names, data = read_of((200, b"the bytes"))
    assert got == b"the bytes"
    assert names == ["/webhdfs/v1/part?op=OPEN&offset=7&length=9&noredirect=true&user.name=me"]
    assert data == ["/webhdfs/v1/part?op=OPEN&offset=7&length=9"]


@pytest.mark.parametrize(
    ("java_class", "kind"), [("java.io.FileNotFoundException", NotFound), ("java.io.IOException", OutcomeUnknown)]
)
def test_what_a_datanode_refuses_to_read_is_sorted_likewise(java_class: str, kind: type[PartfileError]) -> None:
    """It speaks as the NameNode does."""
    with pytest.raises(kind, match="said the server"):
        read_of((403, remote(java_class)))


def test_a_namenode_that_names_no_datanode_is_no_webhdfs() -> None:
    """Neither an empty answer nor a place that is no address is taken for one."""
    with pytest.raises(PartfileError):
        read_of((200, b""), is_named=False)
    for location in ("ftp://127.0.0.1:1/webhdfs/v1/x", "http://127.0.0.1:1/else", "x"):
        with serving(200, json.dumps({"Location": location}).encode()) as names, pytest.raises(ConfigError):
            WebHdfs([names.address]).read("/part", 0, 1, TIMEOUT_S)


def test_a_datanode_out_of_reach_is_named() -> None:
    """Its address is what to look at, not the NameNode's."""
    address = nobody()
    answer = json.dumps({"Location": f"{address}/webhdfs/v1/part?op=OPEN"}).encode()
    with serving(200, answer) as names, pytest.raises(Unreachable, match=str(address.port)):
        WebHdfs([names.address]).read("/part", 0, 1, TIMEOUT_S)
