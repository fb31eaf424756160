"""Which WebHDFS server is asked, what is known when it falls silent, and what it is told: user, token, TLS."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from webhdfs_stub import DONE, STANDBY, TIMEOUT_S, TOKEN, Server, nobody, remote, serving

from partfile.errors import ConfigError, NotApplied, NotReady, OutcomeUnknown
from partfile.stores.hdfs import webhdfs
from partfile.stores.hdfs.options import WebAddress
from partfile.stores.hdfs.webhdfs import Unreachable, WebHdfs

if TYPE_CHECKING:
    from pathlib import Path


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
    """The second call asks the active one first; of those before it nobody is asked again."""
    with serving(*STANDBY) as standby, serving(*DONE) as active:
        web = WebHdfs([nobody(), standby.address, active.address])
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
        WebHdfs([nobody(), standby.address]).truncate("/part", 0, TIMEOUT_S)
    with pytest.raises(Unreachable, match="refused"):
        WebHdfs([nobody(), nobody()]).truncate("/part", 0, TIMEOUT_S)


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
        assert time.monotonic() - began_s < 2
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
        WebHdfs([nobody()], delegation_token=TOKEN).truncate("/part", 0, TIMEOUT_S)
    assert "***" in str(refused.value)
    for shown in (repr(web), str(refused.value), repr(refused.value), str(unreachable.value)):
        assert "secret" not in shown


def test_a_redirection_is_not_followed() -> None:
    """It would carry the token to whoever the answer names."""
    with serving(*DONE) as elsewhere:
        location = {"Location": f"{elsewhere.address}/webhdfs/v1/part"}
        with serving(307, b"", location) as server, pytest.raises(ConfigError):
            WebHdfs([server.address], delegation_token=TOKEN).truncate("/part", 0, TIMEOUT_S)
    assert elsewhere.asked == []


def test_no_address_is_refused() -> None:
    """There would be nobody to ask."""
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
