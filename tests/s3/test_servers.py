"""The S3 servers that other tests rely on: installed, started, killed, and nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import s3fs
from botocore.exceptions import BotoCoreError, EndpointConnectionError

from flights_s3 import ProxiedMoto
from support.processes.server import MissingProgram, free_port, gone, wait_until_gone
from support.s3.ceph import PACKAGES, PROGRAMS, ensure_ceph
from support.s3.probes import MIN_PART_BYTES, OBJECT_PROBES, UPLOAD_PROBES, Place
from support.s3.server import MotoServer, client_without_retries, storage_options

if TYPE_CHECKING:
    from support.s3.server import S3Server


# The S3 servers that other tests rely on: they come up, hold what they say, survive kills, leave nothing behind.

TESTS = Path(__file__).parents[1]

LEFT_AFTER_A_KILL = {
    "moto": ("404 NoSuchBucket", "404 NoSuchBucket", "404 NoSuchBucket"),
    "rclone": ("body", "no metadata", "404 NoSuchUpload"),
    "radosgw": ("body", "metadata", "done"),
}
"""What is left of an object, of its metadata and of an open upload."""

LAST_WORDS = {
    "moto": "address already in use",
    "rclone": "address already in use",
    # It may end before the thread that writes its log has written why.
    "radosgw": "--- end of",
}
"""What the log says where the port is taken."""

CLASSES = {
    "moto": "support.s3.server MotoServer",
    "rclone": "support.s3.server RcloneServer",
    "radosgw": "support.s3.ceph RadosGateway",
}
"""Module and class of each server."""

OWNER = """
import sys, time
from importlib import import_module
from pathlib import Path
kind = getattr(import_module(sys.argv[1]), sys.argv[2])
with kind(Path(sys.argv[3])) as server:
    print(*server.process_ids, flush=True)
    time.sleep(600)
"""


def own_server(name: str, directory: Path) -> S3Server:
    """A server of a kind, not started."""
    module, kind = CLASSES[name].split()
    server: S3Server = getattr(import_module(module), kind)(directory)
    return server


def keys(client: s3fs.S3FileSystem, bucket: str) -> list[str]:
    """The keys in a bucket, listed two at a time."""
    found: list[str] = []
    page: dict[str, str] = {}
    while True:
        listed = client.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=2, **page)
        found += [each["Key"] for each in listed.get("Contents", [])]
        if not listed["IsTruncated"]:
            return found
        page = {"ContinuationToken": listed["NextContinuationToken"]}


def test_a_port_is_given_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server binds its port later, and gives it back while a test has killed it; no other server may get it then."""
    given, other = free_port(), free_port()
    os_numbers = random.SystemRandom()
    offers = iter([given, other])
    monkeypatch.setattr(os_numbers, "randrange", lambda low, high: next(offers, None) or random.randrange(low, high))
    monkeypatch.setattr(random, "SystemRandom", lambda: os_numbers)
    assert free_port() not in {given, other}
    assert next(offers, None) is None


def test_an_object_is_written_and_read_with_the_storage_options_alone(s3_server: S3Server) -> None:
    """They are all that s3fs needs, and two buckets are two places."""
    client = s3fs.S3FileSystem(**s3_server.storage_options, skip_instance_cache=True)
    here, there = s3_server.bucket(), s3_server.bucket()
    client.pipe_file(f"{here}/a/b", b"abc")
    assert client.cat_file(f"{here}/a/b") == b"abc"
    assert not client.exists(f"{there}/a/b")


def test_an_upload_of_two_parts_becomes_their_bytes(s3: s3fs.S3FileSystem, bucket: str) -> None:
    """An open upload is known by its id alone, and the completed one has all bytes in order."""
    place = Place(s3, bucket, "key")
    place.begin()
    first, second = place.part(1, b"1" * MIN_PART_BYTES), place.part(2, b"2")
    assert place.complete(first, second) == "done"
    assert place.content() == b"1" * MIN_PART_BYTES + b"2"


def test_a_change_is_seen_at_once_by_name_and_by_list(s3_server: S3Server, s3: s3fs.S3FileSystem, bucket: str) -> None:
    """After each put and delete another client reads and lists the new state, also over several pages."""
    other = s3_server.filesystem()
    for number in range(5):
        s3.call_s3("put_object", Bucket=bucket, Key=f"{number}", Body=b"%d" % number)
        assert keys(other, bucket) == [f"{each}" for each in range(number + 1)]
    s3.call_s3("put_object", Bucket=bucket, Key="0", Body=b"changed")
    assert other.cat_file(f"{bucket}/0") == b"changed"
    for number in range(5):
        s3.call_s3("delete_object", Bucket=bucket, Key=f"{number}")
        assert keys(other, bucket) == [f"{each}" for each in range(number + 1, 5)]


def test_a_kill_leaves_what_the_table_says(own_s3_server: S3Server, s3: s3fs.S3FileSystem, bucket: str) -> None:
    """A server that was killed comes back on its port; what it then has lost is known."""
    written, opened = Place(s3, bucket, "written"), Place(s3, bucket, "opened")
    written.call("put_object", Body=b"body", Metadata={"owner": "me"})
    opened.begin()
    part = opened.part(1, b"part")
    own_s3_server.kill()
    with pytest.raises(EndpointConnectionError):
        written.call("head_object")
    own_s3_server.start()
    found = written.ask("get_object")
    left = (
        written.content().decode() if found == "done" else found,
        ("metadata" if written.call("head_object")["Metadata"] else "no metadata") if found == "done" else found,
        opened.complete(part),
    )
    assert left == LEFT_AFTER_A_KILL[own_s3_server.name]
    assert own_s3_server.keeps_data == (found == "done")


def test_a_paused_server_keeps_its_callers_waiting(own_s3_server: S3Server, s3: s3fs.S3FileSystem, bucket: str) -> None:
    """While it is paused nothing is answered; once it goes on, the put that had to wait succeeds."""
    place = Place(s3, bucket, "key")
    answers: list[str] = []
    put = threading.Thread(target=lambda: answers.append(place.ask("put_object", Body=b"late")))
    own_s3_server.pause()
    put.start()
    put.join(timeout=0.5)
    assert put.is_alive()
    own_s3_server.resume()
    put.join()
    assert answers == ["done"]
    assert place.content() == b"late"


def test_mending_brings_back_a_paused_and_a_killed_server(own_s3_server: S3Server) -> None:
    """Whatever has been done to a server, afterwards it answers."""
    own_s3_server.pause()
    own_s3_server.mend()
    own_s3_server.bucket()
    own_s3_server.kill()
    own_s3_server.mend()
    own_s3_server.bucket()


def test_a_failed_start_shows_the_log(s3_server: S3Server, tmp_path: Path) -> None:
    """A server whose port is taken is reported with the reason and its log, not with a time-out."""
    server = own_server(s3_server.name, tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.port))
        with (
            pytest.raises(
                RuntimeError, match=f"(?si)does not run: port {server.port} is taken.*{LAST_WORDS[server.name]}"
            ),
            server,
        ):
            pass


def test_a_killed_owner_leaves_no_server_behind(s3_server: S3Server, tmp_path: Path) -> None:
    """When the process that started a server is SIGKILLed, all processes of the server end by themselves."""
    command = [sys.executable, "-c", OWNER, *CLASSES[s3_server.name].split(), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        servers = [int(number) for number in owner.stdout.readline().split()]
        assert len(servers) == len(s3_server.process_ids)
        assert not gone(servers)
        owner.send_signal(signal.SIGKILL)
    wait_until_gone(servers)


def test_a_stopped_server_leaves_no_process_behind(s3_server: S3Server, tmp_path: Path) -> None:
    """After its block all its processes are gone, also those that it stands on."""
    with own_server(s3_server.name, tmp_path) as server:
        servers = server.process_ids
        assert not gone(servers)
    assert gone(servers)


# How Ceph's servers come onto a machine: by apt where that is allowed, else by a sentence that says how.

APT = """#!/bin/sh
echo "$@" >> {directory}/called
case "$*" in *install*) {install} ;; esac
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only directory of the ``PATH``, on a machine whose root we are."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def give_apt(machine: Path, install: str) -> None:
    """Put an ``apt-get`` there that notes how it is called, and runs a command to install."""
    apt = machine / "apt-get"
    apt.write_text(APT.format(directory=machine, install=install))
    apt.chmod(0o755)


def test_as_root_with_apt_it_is_installed_once_and_said_before(machine: Path) -> None:
    """The lists of packages are fetched first; a second call finds everything and does nothing."""
    give_apt(machine, f"for name in {' '.join(PROGRAMS)}; do /bin/cp $0 {machine}/$name; done")
    said: list[str] = []
    ensure_ceph(said.append)
    ensure_ceph(said.append)
    update, install = (machine / "called").read_text().splitlines()
    assert " update" in update
    assert f" install --no-install-recommends {' '.join(PACKAGES)} " in install
    assert len(said) == 1
    assert " ".join(PACKAGES) in said[0]


def test_a_failed_installation_shows_what_apt_said(machine: Path) -> None:
    """The reason is apt's own."""
    give_apt(machine, "echo no such package; exit 100")
    with pytest.raises(RuntimeError, match="no such package"):
        ensure_ceph(lambda _text: None)


@pytest.mark.parametrize("user", [0, 1000])
def test_where_it_cannot_be_installed_the_message_says_what_to_do(
    machine: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    """Without apt, or without being root, nothing is called, and there is a way to do without."""
    if user:
        give_apt(machine, "exit 100")
        monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(MissingProgram, match=r"needs ceph-mon.*apt-get install.* radosgw.*not radosgw"):
        ensure_ceph(lambda _text: None)
    assert not (machine / "called").exists()


# What the demo on S3 stands on: a server that goes and comes back in the same place, and uploads that are counted.


@pytest.mark.slow
def test_the_proxy_that_stands_for_moto_comes_back_with_its_data(moto: S3Server) -> None:
    """While it is away nothing answers; afterwards everything is where it was."""
    assert isinstance(moto, MotoServer)
    endpoint, bucket = ProxiedMoto(moto), moto.bucket()
    client = client_without_retries(storage_options(endpoint.endpoint_url, moto.access_key, moto.secret_key))
    client.call_s3("put_object", Bucket=bucket, Key="key", Body=b"body")
    endpoint.kill()
    with pytest.raises(BotoCoreError):
        client.call_s3("head_object", Bucket=bucket, Key="key")
    endpoint.start()
    assert client.cat_file(f"{bucket}/key") == b"body"
    endpoint.kill()


@pytest.mark.slow
def test_uploads_are_pending_until_they_are_completed_or_aborted(s3_server: S3Server) -> None:
    """An upload that no checkpoint names is what the demo must not leave."""
    client, bucket = s3_server.filesystem(), s3_server.bucket()
    assert s3_server.pending_uploads(bucket) == []
    upload = client.call_s3("create_multipart_upload", Bucket=bucket, Key="key")["UploadId"]
    assert [one["UploadId"] for one in s3_server.pending_uploads(bucket)] == [upload]
    client.call_s3("abort_multipart_upload", Bucket=bucket, Key="key", UploadId=upload)
    assert s3_server.pending_uploads(bucket) == []


# What each S3 server does where they differ, as observed: a version that does something else is to be seen here.
#
# Correctness of partfile rests on none of it; it decides which replies its store has to understand.


EXISTS = "412 PreconditionFailed"
GONE = "404 NoSuchUpload"
REPLACED = "done, replaced"
BROKEN = "500 InternalError"

OBSERVED = {
    # The question, and the answers of moto 5.2, rclone 1.75 and radosgw 16.2.
    "put_if_absent": (EXISTS, REPLACED, EXISTS),
    "put_nothing_if_absent": (EXISTS, REPLACED, EXISTS),
    "put_if_absent_by_rivals": ("one", "several", "one"),
    "put_if_match": (EXISTS, REPLACED, EXISTS),
    "put_with_wrong_checksum": ("done", "done", "done"),
    "put_with_wrong_md5": ("done", "400 BadDigest", "400 BadDigest"),
    "checksum_is_kept": ("yes", "yes", "no"),
    "read_of_a_range": ("done", "the whole object's checksum", "done"),
    "delete_if_match": (EXISTS, "done, deleted", "done, deleted"),
    "delete_of_nothing": ("done", "done", "done"),
    "wrong_secret_key": ("done", "403 SignatureDoesNotMatch", "403 SignatureDoesNotMatch"),
    "lifecycle_of_bucket": ("404 NoSuchLifecycleConfiguration", "done", "404 NoSuchLifecycleConfiguration"),
    "versioning_of_bucket": ("done", "done", "done"),
    "complete_if_absent": (EXISTS, REPLACED, REPLACED),
    "complete_again": ("done", GONE, "done"),
    "complete_again_if_absent": ("done", GONE, "done"),
    "complete_again_what_was_replaced": ("500 500", GONE, BROKEN),
    "complete_again_what_was_deleted": ("500 500", GONE, BROKEN),
    "complete_after_abort": ("500 500", GONE, BROKEN),
    "complete_without_parts": ("400 MalformedXML", "done", "400 MalformedXML"),
    "complete_with_small_part": ("400 EntityTooSmall", "done", "400 EntityTooSmall"),
    "complete_with_wrong_tag": ("400 InvalidPart", "400 InvalidPart", "400 InvalidPart"),
    "complete_after_part_was_sent_again": ("400 InvalidPart", "sent again: 501 NotImplemented", "400 InvalidPart"),
    "complete_without_some_parts": ("done", "400 InvalidPart", "400 InvalidPart"),
    "complete_without_last_part": ("done", "400 InvalidPart", "400 InvalidPart"),
    "complete_with_gaps": ("done", "400 InvalidPart", "done"),
    "parts_in_any_order": ("done", "done", "done"),
    "parts_named_in_any_order": ("done, other bytes", "400 InvalidPartOrder", "done"),
    "part_of_completed_upload": ("500 500", GONE, GONE),
    "part_of_aborted_upload": ("500 500", GONE, GONE),
    "abort_again": (GONE, GONE, GONE),
    "abort_what_was_completed": (GONE, GONE, GONE),
    "upload_is_invisible": ("yes", "yes", "yes"),
    "upload_is_listed": ("yes", "yes", "yes"),
    "upload_keeps_metadata": ("yes", "yes", "yes"),
}
SERVERS = ("moto", "rclone", "radosgw")


def test_the_server_answers_as_observed(s3_server: S3Server, s3: s3fs.S3FileSystem, bucket: str) -> None:
    """Preconditions, repeated requests, odd uploads and checksums: each answer is the one in the table."""
    answers = {probe.__name__: probe(Place(s3, bucket, probe.__name__)) for probe in (*OBJECT_PROBES, *UPLOAD_PROBES)}
    column = SERVERS.index(s3_server.name)
    assert answers == {question: row[column] for question, row in OBSERVED.items()}
