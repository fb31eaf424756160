"""What a WebHDFS server answers, sorted into the tree of errors."""

from __future__ import annotations

import pytest
from webhdfs_stub import TIMEOUT_S, remote, serving

from partfile.filesystems.errors import (
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    PartfileError,
)
from partfile.filesystems.webhdfs import MAX_REPLY_BYTES, WebHdfs


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
