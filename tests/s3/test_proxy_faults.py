"""What the proxy in front of an S3 server can cause: each fault is the one that its name says, where it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import s3fs
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError, ReadTimeoutError

from support.processes.deadline import PATIENCE_S, wait_until
from support.s3.probes import Place
from support.s3.proxy import (
    error_in_success,
    internal_error,
    kill,
    late_reply,
    late_request,
    lost_reply,
    reset,
    slow_down,
    truncated_body,
)

if TYPE_CHECKING:
    from support.s3.proxy import Fault, S3Proxy
    from support.s3.server import S3Server


pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]

SENT_BY_THE_CLIENT = 2
"""How often a client that is told not to retry sends a PUT whose connection ends."""

WRITER = """
import sys
import s3fs
from support.s3.server import client_without_retries, storage_options
sys.stdin.readline()
client = client_without_retries(storage_options(*sys.argv[1:4]))
for number in range(9):
    client.call_s3("put_object", Bucket=sys.argv[4], Key=str(number), Body=b"body")
"""


@pytest.fixture
def s3_server(moto: S3Server) -> S3Server:
    """The quickest server; the faults are the proxy's, whatever is behind it."""
    return moto


@pytest.mark.parametrize("fault", [lost_reply(), internal_error(reaches_server=True)])
def test_what_the_server_did_is_not_told(s3_proxy: S3Proxy, proxied: Place, direct: Place, fault: Fault) -> None:
    """The object is there, and the client was told of a failure; the next request is answered."""
    injection = s3_proxy.inject(fault, operation="PutObject", times=SENT_BY_THE_CLIENT)
    with pytest.raises((BotoCoreError, OSError)):
        proxied.call("put_object", Body=b"body")
    assert injection.struck.is_set()
    assert direct.content() == proxied.content() == b"body"
    put = s3_proxy.exchanges[0]
    assert (put.status, put.fault) == (200, fault)


@pytest.mark.parametrize(
    ("fault", "answer"),
    [(reset(), None), (slow_down(), "503 SlowDown"), (internal_error(), "500 InternalError")],
)
def test_what_the_server_does_not_hear_does_not_happen(
    s3_proxy: S3Proxy, proxied: Place, direct: Place, fault: Fault, answer: str | None
) -> None:
    """The client is told of a failure, and there is no object; the next request is answered."""
    s3_proxy.inject(fault, operation="PutObject", times=SENT_BY_THE_CLIENT)
    if answer is None:
        with pytest.raises(BotoCoreError):
            proxied.call("put_object", Body=b"body")
    else:
        assert proxied.ask("put_object", Body=b"body") == answer
    assert s3_proxy.exchanges[0].status is None
    assert not direct.exists()
    assert not proxied.exists()


def test_a_connection_is_reset_not_ended(s3_proxy: S3Proxy, proxied: Place) -> None:
    """The client sees no orderly end, also on a connection that it has used before."""
    proxied.call("put_object", Body=b"body")
    s3_proxy.inject(lost_reply())
    with pytest.raises(EndpointConnectionError) as raised:
        proxied.begin()
    assert "Connection reset by peer" in str(raised.value.kwargs["error"])


def test_the_client_repeats_what_is_idempotent_and_says_nothing(s3_proxy: S3Proxy, proxied: Place) -> None:
    """Aiohttp sends a PUT again when its connection ends, below all settings of botocore and s3fs; a POST it does not.

    So a conditional PUT that was carried out can be answered by 412, and a lost reply has to be lost twice in a test.
    """
    s3_proxy.inject(lost_reply(), operation="PutObject")
    assert proxied.ask("put_object", Body=b"body", IfNoneMatch="*") == "412 PreconditionFailed"
    s3_proxy.inject(lost_reply(), operation="CreateMultipartUpload")
    with pytest.raises(EndpointConnectionError):
        proxied.begin()
    assert s3_proxy.count() == {"PutObject": SENT_BY_THE_CLIENT, "CreateMultipartUpload": 1}


@pytest.mark.parametrize("reaches_server", [True, False])
def test_a_completion_can_fail_with_status_200(
    s3_proxy: S3Proxy, proxied: Place, direct: Place, *, reaches_server: bool
) -> None:
    """The error in the body is an error for the client, whether or not the object is there."""
    proxied.begin()
    part = proxied.part(1, b"body")
    s3_proxy.inject(error_in_success(reaches_server=reaches_server), operation="CompleteMultipartUpload")
    with pytest.raises(OSError, match="caused by the proxy") as raised:
        proxied.call("complete_multipart_upload", MultipartUpload={"Parts": [part]})
    assert isinstance(raised.value.__cause__, ClientError)
    assert direct.exists() is reaches_server


def test_a_body_ends_before_its_length(s3_proxy: S3Proxy, proxied: Place) -> None:
    """A reader notices that bytes are missing; the next read has them all."""
    proxied.call("put_object", Body=b"0123456789")
    s3_proxy.inject(truncated_body(4), operation="GetObject")
    with pytest.raises(Exception, match=r"(?i)not enough data|incomplete|payload"):
        proxied.content()
    assert proxied.content() == b"0123456789"


def test_a_late_reply_comes_after_the_deed(s3_proxy: S3Proxy, proxied: Place, direct: Place) -> None:
    """The object is there while the client still waits, and the client gets its answer."""
    # Long enough for a look at the object on a busy machine.
    s3_proxy.inject(late_reply(10.0), operation="PutObject")
    put = threading.Thread(target=proxied.call, args=("put_object",), kwargs={"Body": b"body"})
    put.start()
    wait_for_object(direct)
    assert put.is_alive()
    put.join()


def test_a_late_request_is_done_behind_the_clients_back(s3_proxy: S3Proxy, bucket: str, direct: Place) -> None:
    """A client that does not wait is told of a time-out, and afterwards the object appears."""
    impatient = s3fs.S3FileSystem(
        **{**s3_proxy.storage_options, "config_kwargs": {"read_timeout": 0.3, "retries": {"total_max_attempts": 1}}},
        skip_instance_cache=True,
    )
    impatient.retries = 1
    impatient.connect()
    s3_proxy.inject(late_request(10.0))
    with pytest.raises(ReadTimeoutError):
        Place(impatient, bucket, "key").call("put_object", Body=b"body")
    assert not direct.exists()
    wait_for_object(direct)


def test_a_fault_strikes_the_requests_that_were_named(s3_proxy: S3Proxy, bucket: str) -> None:
    """By operation, key, position and number: those are struck, and no others; healing ends it."""
    client = s3_proxy.filesystem()
    s3_proxy.inject(slow_down(), operation="PutObject", key="a*", first=2, times=2)
    everything = s3_proxy.inject(internal_error(), method="HEAD", times=None)
    names = ("a0", "b0", "a1", "b1", "a2", "a3")
    answers = [Place(client, bucket, name).ask("put_object", Body=b"x") for name in names]
    assert answers == ["done", "done", "503 SlowDown", "done", "503 SlowDown", "done"]
    assert [Place(client, bucket, "a0").exists() for _ in range(3)] == [False] * 3
    assert everything.seen == 3
    s3_proxy.heal()
    assert Place(client, bucket, "a0").exists()


@pytest.mark.parametrize("reaches_server", [True, False])
def test_the_owner_is_killed_at_a_request(
    s3_server: S3Server, s3_proxy: S3Proxy, s3: s3fs.S3FileSystem, bucket: str, *, reaches_server: bool
) -> None:
    """The process that asks dies before or after the deed of its third request, and asks for nothing more."""
    options = s3_server.storage_options
    command = [sys.executable, "-c", WRITER, s3_proxy.endpoint_url, options["key"], options["secret"], bucket]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as owner:
        s3_proxy.inject(kill(owner.pid, reaches_server=reaches_server), operation="PutObject", first=3)
        owner.communicate(b"go", timeout=PATIENCE_S)
    assert owner.returncode == -signal.SIGKILL
    assert s3_proxy.count() == {"PutObject": 3}
    assert [Place(s3, bucket, str(number)).exists() for number in range(4)] == [True, True, reaches_server, False]


def wait_for_object(place: Place) -> None:
    """Wait until there is an object."""
    wait_until(place.exists, "there is no object")
