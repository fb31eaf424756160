"""WebHDFS without a NameNode: which server is asked, what its replies mean, and when truncate is tried again."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from partfile.errors import ConfigError, LeaseUnavailable, NotApplied, NotFound, NotReady, OutcomeUnknown, PartfileError
from partfile.stores.hadoop import HadoopConfiguration
from partfile.stores.hdfs import webhdfs
from partfile.stores.hdfs import webhdfs as hdfs_truncation
from partfile.stores.hdfs.options import HdfsOptions, WebAddress, web_address, web_addresses
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.hdfs.webhdfs import MAX_REPLY_BYTES, HdfsTruncation, Unreachable, WebHdfs
from support.hdfs.webhdfs import DONE, STANDBY, TIMEOUT_S, TOKEN, Server, no_server, remote, serving
from support.processes.server import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# From an HDFS URL and Hadoop's configuration to the web servers of its NameNodes.

HA = {
    "fs.defaultFS": "hdfs://Blue",
    "dfs.nameservices": "Blue, green",
    "dfs.ha.namenodes.Blue": "nn1, nn2",
    "dfs.namenode.rpc-address.Blue.nn1": "one:8020",
    "dfs.namenode.rpc-address.Blue.nn2": "Two:8020",
    "dfs.namenode.http-address.Blue.nn1": "web-one:1",
    "dfs.namenode.http-address.Blue.nn2": "0.0.0.0:2",
    "dfs.namenode.https-address.Blue.nn1": "web-one:3",
    "dfs.namenode.rpc-address.green": "three:9000",
    "dfs.namenode.http-address.green": "three:4",
    "dfs.namenode.http-address": "wrong:5",
}


def addresses(url: str, properties: dict[str, str]) -> list[str]:
    """The addresses as text."""
    return [str(address) for address in web_addresses(url, HadoopConfiguration(properties))]


@pytest.mark.parametrize("url", ["hdfs://blue/base", "hdfs://BLUE", "hdfs:///base", "hdfs://user@blue/base"])
def test_a_name_service_has_one_address_a_namenode(url: str) -> None:
    """In the order of the configuration; a wildcard stands for the host of the RPC address."""
    assert addresses(url, HA) == ["http://web-one:1", "http://two:2"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hdfs://one:8020/base", "http://web-one:1"),
        ("hdfs://one/base", "http://web-one:1"),
        ("hdfs://TWO:8020/base", "http://two:2"),
        ("hdfs://three:9000", "http://three:4"),
        ("hdfs://green/base", "http://three:4"),
        ("hdfs://stranger:8020", "http://stranger:9870"),
        ("hdfs://one:9999", "http://one:9870"),
    ],
)
def test_a_host_has_just_its_own_address(url: str, expected: str) -> None:
    """It is found by its RPC address; one that the configuration does not know has Hadoop's default."""
    assert addresses(url, HA) == [expected]


@pytest.mark.parametrize("policy", ["HTTPS_ONLY", "https_only", "HTTP_AND_HTTPS"])
def test_where_there_is_tls_it_is_used(policy: str) -> None:
    """A token must not travel in the clear; where no address is written it is the default one."""
    assert addresses("hdfs://blue", {**HA, "dfs.http.policy": policy}) == ["https://web-one:3", "https://two:9871"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "http://nn:9870"),
        ({"dfs.namenode.http-address": "web:1"}, "http://web:1"),
        ({"dfs.namenode.http-address": "0.0.0.0:1"}, "http://nn:1"),
        ({"dfs.namenode.http-address": "web"}, "http://web:9870"),
        ({"dfs.namenode.http-address": "[::1]:1"}, "http://[::1]:1"),
        ({"dfs.namenode.http-address": "web:1", "fs.defaultFS": "hdfs://nn:8020"}, "http://web:1"),
        ({"dfs.namenode.http-address": "web:1", "fs.defaultFS": "hdfs://another"}, "http://nn:9870"),
        ({"dfs.namenode.http-address": "web:1", "dfs.namenode.rpc-address": "nn:8020"}, "http://web:1"),
        ({"dfs.namenode.http-address": "web:1", "dfs.namenode.rpc-address": "nn:1"}, "http://nn:9870"),
    ],
)
def test_properties_without_a_suffix_speak_of_the_default_namenode(properties: dict[str, str], expected: str) -> None:
    """Of another cluster's NameNode they say nothing."""
    assert addresses("hdfs://nn/base", properties) == [expected]


@pytest.mark.parametrize("default", ["", "file:///", "hdfs:///", "s3://bucket"])
def test_a_url_without_a_namenode_needs_a_default_of_hdfs(default: str) -> None:
    """Otherwise the refusal names both."""
    with pytest.raises(ConfigError, match=r"fs.defaultFS"):
        addresses("hdfs:///base", {"fs.defaultFS": default})


def test_a_name_service_without_an_rpc_address_is_refused() -> None:
    """It would be taken for a host of that name."""
    with pytest.raises(ConfigError, match="name service 'ns'"):
        addresses("hdfs://ns", {"dfs.nameservices": "ns", "dfs.ha.namenodes.ns": "a,b"})


@pytest.mark.parametrize("written", ["web:port", "web:99999", "web/path", "web?x", "[::1"])
def test_a_damaged_address_is_refused_by_the_name_of_its_property(written: str) -> None:
    """The property is what has to be mended."""
    with pytest.raises(ConfigError, match=r"dfs.namenode.http-address"):
        addresses("hdfs://nn", {"dfs.namenode.http-address": written})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("nn:9870", "http://nn:9870"),
        ("http://nn:1/", "http://nn:1"),
        ("https://NN:1", "https://nn:1"),
        ("[::1]:1", "http://[::1]:1"),
        ("127.0.0.1:1", "http://127.0.0.1:1"),
    ],
)
def test_an_address_can_be_written_with_or_without_a_scheme(written: str, expected: str) -> None:
    """Without one it is plain HTTP."""
    assert str(web_address(written)) == expected


@pytest.mark.parametrize(
    "written", ["", "nn", ":9870", "ftp://nn:1", "http://nn:1/webhdfs", "nn:1?a", "nn:1#a", "u:p@nn:1", "nn:x", "[:1"]
)
def test_what_is_no_address_is_refused(written: str) -> None:
    """A path, a query or a password in it would be ignored, so they are not taken."""
    with pytest.raises(ConfigError, match="not the address of a web server"):
        web_address(written)


# What a WebHDFS server answers, sorted into the tree of errors.


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
    """Each class has its kind of error with the server's words in it; one that is in no list may have happened."""
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
    address = no_server()
    answer = json.dumps({"Location": f"{address}/webhdfs/v1/part?op=OPEN"}).encode()
    with serving(200, answer) as names, pytest.raises(Unreachable, match=str(address.port)):
        WebHdfs([names.address]).read("/part", 0, 1, TIMEOUT_S)


# Which WebHDFS server is asked, what is known when it falls silent, and what it is told: user, token, TLS.


def hang_up(server: socket.socket, times: int) -> None:
    """Take some connections and close each without an answer."""
    for _ in range(times):
        server.accept()[0].close()


def drip(server: socket.socket, stop: threading.Event) -> None:
    """Answer one request with a byte now and then, for five seconds or until told to stop."""
    connection, _ = server.accept()
    with connection, suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(100):
            if stop.wait(0.05):
                return
            connection.sendall(b" ")


def test_a_namenode_on_standby_sends_to_the_next_and_the_active_one_is_remembered() -> None:
    """The second call asks the active one first; of those before it none is asked again."""
    with serving(*STANDBY) as standby, serving(*DONE) as active:
        web = WebHdfs([no_server(), standby.address, active.address])
        assert web.truncate("/part", 0, TIMEOUT_S)
        assert web.truncate("/part", 0, TIMEOUT_S)
    assert (len(standby.asked), len(active.asked)) == (1, 2)


def test_after_a_failover_the_other_namenode_is_found() -> None:
    """The one that was active goes to standby; the next call goes round."""
    with serving(*DONE) as one, serving(*STANDBY) as other:
        web = WebHdfs([one.address, other.address])
        assert web.truncate("/part", 0, TIMEOUT_S)
        (one.status, one.body), (other.status, other.body) = STANDBY, DONE
        assert web.truncate("/part", 0, TIMEOUT_S)
        assert len(other.asked) == 1


def test_without_an_active_namenode_it_is_not_ready_and_without_any_it_did_not_happen() -> None:
    """A standby promises that there will be an active one; silence promises nothing."""
    with serving(*STANDBY) as standby, pytest.raises(NotReady, match=r"refused.*on standby"):
        WebHdfs([no_server(), standby.address]).truncate("/part", 0, TIMEOUT_S)
    with pytest.raises(Unreachable, match="refused"):
        WebHdfs([no_server(), no_server()]).truncate("/part", 0, TIMEOUT_S)


def test_a_change_that_got_no_answer_is_not_sent_to_another_namenode() -> None:
    """What may have happened must be reported."""
    with socket.create_server(("127.0.0.1", 0)) as silent, serving(*DONE) as active:
        web = WebHdfs([WebAddress("127.0.0.1", silent.getsockname()[1], is_tls=False), active.address])
        closer = threading.Thread(target=hang_up, args=(silent, 1))
        closer.start()
        with pytest.raises(OutcomeUnknown, match="sent and not answered"):
            web.truncate("/part", 0, TIMEOUT_S)
        assert active.asked == []
        closer.join()


def test_a_server_that_takes_no_connection_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is off or cut off says nothing at all; the active NameNode is asked within the same call."""
    monkeypatch.setattr(webhdfs, "CONNECT_TIMEOUT_S", 0.3)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            # Those that wait to be taken fill its queue; of all others the kernel ignores the request.
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
        active = stack.enter_context(serving(*DONE))
        web = WebHdfs([WebAddress("127.0.0.1", full.getsockname()[1], is_tls=False), active.address])
        assert web.truncate("/part", 0, 3)
        assert len(active.asked) == 1


def test_a_server_that_drips_is_left_at_the_deadline() -> None:
    """An answer that comes byte by byte does not hold the caller longer than it said."""
    with socket.create_server(("127.0.0.1", 0)) as dripping:
        stop = threading.Event()
        thread = threading.Thread(target=drip, args=(dripping, stop))
        thread.start()
        began_s = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            WebHdfs([WebAddress("127.0.0.1", dripping.getsockname()[1], is_tls=False)]).truncate("/part", 0, 0.5)
        # Without the deadline it would last as long as the server drips, which is until the next line.
        assert time.monotonic() - began_s < 30
        stop.set()
        thread.join()


def test_the_user_or_the_token_is_sent_and_never_both() -> None:
    """A token says who it is; a name beside it would be refused by a secure NameNode."""
    with serving(*DONE) as server:
        WebHdfs([server.address], user="a b&c").truncate("/p 1", 2, TIMEOUT_S)
        WebHdfs([server.address], user="x", delegation_token=TOKEN).truncate("/p", 2, TIMEOUT_S)
        WebHdfs([server.address]).truncate("/p", 2, TIMEOUT_S)
    prefix = "/webhdfs/v1"
    assert server.asked == [
        f"{prefix}/p%201?op=TRUNCATE&newlength=2&user.name=a%20b%26c",
        f"{prefix}/p?op=TRUNCATE&newlength=2&delegation=kAAMcGFydGZpbGU%2Bsecret%2F8A",
        f"{prefix}/p?op=TRUNCATE&newlength=2",
    ]


def test_a_token_is_shown_nowhere_even_where_the_server_repeats_it() -> None:
    """Neither the client's text nor any error has it, whether the server quotes it as sent or decoded."""
    said = f'Invalid value for webhdfs parameter "delegation": {TOKEN} kAAMcGFydGZpbGU%2Bsecret%2F8A'
    with serving(400, remote("java.lang.IllegalArgumentException", said)) as server:
        web = WebHdfs([server.address], delegation_token=TOKEN)
        with pytest.raises(NotApplied) as refused:
            web.truncate("/part", 0, TIMEOUT_S)
    with pytest.raises(NotApplied) as unreachable:
        WebHdfs([no_server()], delegation_token=TOKEN).truncate("/part", 0, TIMEOUT_S)
    assert "***" in str(refused.value)
    for shown in (repr(web), str(refused.value), repr(refused.value), str(unreachable.value)):
        assert "secret" not in shown


def test_a_redirection_is_not_followed() -> None:
    """It would carry the token to the host that the answer names."""
    with serving(*DONE) as elsewhere:
        location = {"Location": f"{elsewhere.address}/webhdfs/v1/part"}
        with serving(307, b"", location) as server, pytest.raises(ConfigError):
            WebHdfs([server.address], delegation_token=TOKEN).truncate("/part", 0, TIMEOUT_S)
    assert elsewhere.asked == []


def test_no_address_is_refused() -> None:
    """There would be no server to ask."""
    with pytest.raises(ConfigError):
        WebHdfs([])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(certificate), "-keyout", str(key)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_over_tls_only_a_trusted_server_gets_the_request(certificate: tuple[Path, Path]) -> None:
    """With its certificate in ``ca_file`` it is asked; without, it never hears of path or token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with Server(*DONE) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        # The handshake fails on purpose below, and would be reported.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = WebAddress("127.0.0.1", server.server_address[1], is_tls=True)
        try:
            assert WebHdfs([address], ca_file=str(certificate[0])).truncate("/part", 0, TIMEOUT_S)
            with pytest.raises(ConfigError, match="not trusted") as refused:
                WebHdfs([address], delegation_token=TOKEN).truncate("/part", 0, TIMEOUT_S)
            with serving(*DONE) as plain:
                # The NameNode's answer has the token in it.
                server.body = json.dumps({"Location": f"{plain.address}/webhdfs/v1/part?delegation=x"}).encode()
                with pytest.raises(ConfigError, match="without TLS"):
                    WebHdfs([address], ca_file=str(certificate[0])).read("/part", 0, 1, TIMEOUT_S)
        finally:
            server.shutdown()
            thread.join()
    assert "ca_file" in refused.value.hint
    assert (len(server.asked), plain.asked) == (2, [])


def test_a_ca_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    """At once, not at the first call."""
    address = WebAddress("127.0.0.1", 1, is_tls=True)
    (tmp_path / "empty.pem").write_text("")
    for name in ("gone.pem", "empty.pem"):
        with pytest.raises(ConfigError, match=rf"ca_file .*{name}"):
            WebHdfs([address], ca_file=str(tmp_path / name))


# What an attempt to truncate that was in vain means for those after it.


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
def test_what_hdfs_says_of_one_file_stops_no_cut_of_another(java_class: str, kind: type[NotApplied]) -> None:
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
    """As in a container whose uid has no name: HDFS then says who it takes it for."""

    def nameless() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    with serving(*DONE) as server:
        assert HdfsStore("hdfs://nn/base", HdfsOptions(http_address=str(server.address))).capabilities.truncate
        assert HdfsTruncation("hdfs://nn", HdfsOptions(http_address=str(server.address))).truncate("/a", 1)
    assert server.asked == ["/webhdfs/v1/a?op=TRUNCATE&newlength=1"]


def test_a_child_that_was_forked_while_its_parent_connected_connects_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that another thread of the parent held at that moment stays held in the child."""
    connect, parent = hdfs_truncation.connect_to_web, os.getpid()
    inside, leave = threading.Event(), threading.Event()

    def slow(url: str, options: HdfsOptions) -> WebHdfs:
        if os.getpid() == parent:
            inside.set()
            leave.wait(120)
        return connect(url, options)

    monkeypatch.setattr(hdfs_truncation, "connect_to_web", slow)
    with serving(*DONE) as server:
        truncation = HdfsTruncation("hdfs://nn", HdfsOptions(http_address=str(server.address)))
        thread = threading.Thread(target=truncation.truncate, args=("/parent", 1))
        thread.start()
        assert inside.wait(60)
        with neighbour_process(lambda: truncation.is_possible and truncation.truncate("/child", 1)) as ended:
            assert ended(60)
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
