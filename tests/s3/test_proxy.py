"""The proxy in front of each S3 server: it changes nothing unasked, tells operations apart, and counts."""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError, EndpointConnectionError

from support.s3.probes import MIN_PART_BYTES, Place
from support.s3.proxy import S3Proxy, call
from support.s3.requests import RequestPattern, S3Request, recognise

if TYPE_CHECKING:
    import s3fs

    from support.s3.server import S3Server


# The proxy in front of each S3 server: it changes nothing unasked, and counts.


def test_requests_and_replies_go_through_as_they_are(proxied: Place, direct: Place) -> None:
    """Signatures hold; bodies, metadata, errors, empty objects and ranges are what they are without the proxy."""
    proxied.call("put_object", Body=bytes(range(256)) * 999, Metadata={"owner": "me"})
    assert direct.content() == proxied.content() == bytes(range(256)) * 999
    head = proxied.call("head_object")
    assert (head["ContentLength"], head["ETag"]) == (255744, direct.call("head_object")["ETag"])
    assert head["Metadata"] == direct.call("head_object")["Metadata"] == {"owner": "me"}
    assert proxied.call("get_object", Range="bytes=10-19")["ContentRange"] == "bytes 10-19/255744"
    proxied.call("put_object", Body=b"")
    assert direct.content() == proxied.content() == b""
    deleted, again = proxied.call("delete_object"), direct.call("delete_object")
    lengths = [each["ResponseMetadata"]["HTTPHeaders"].get("content-length") for each in (deleted, again)]
    assert lengths[0] == lengths[1]
    assert proxied.ask("get_object") == direct.ask("get_object") == "404 NoSuchKey"


def test_names_of_any_characters_go_through(s3_proxy: S3Proxy, s3: s3fs.S3FileSystem, bucket: str) -> None:
    """A key that has to be encoded arrives as it was meant, and is recorded so."""
    key = "dir=1/täg %41+b&c?d#e"
    Place(s3_proxy.filesystem(), bucket, key).call("put_object", Body=b"body")
    assert Place(s3, bucket, key).content() == b"body"
    assert s3_proxy.exchanges[-1].request.key == key


def test_every_request_is_recorded(s3_proxy: S3Proxy, proxied: Place) -> None:
    """Operation, key, part, bytes both ways and status, in order; a refused one too; forgetting starts from zero."""
    proxied.begin()
    parts = proxied.part(1, b"1" * MIN_PART_BYTES), proxied.part(2, b"22")
    proxied.complete(*parts)
    assert proxied.content() == b"1" * MIN_PART_BYTES + b"22"
    proxied.ask("abort_multipart_upload")
    seen = [
        (each.request.operation, each.request.part_number, each.status, each.request.upload_id)
        for each in s3_proxy.exchanges
    ]
    assert seen == [
        ("CreateMultipartUpload", None, 200, ""),
        ("UploadPart", 1, 200, proxied.upload_id),
        ("UploadPart", 2, 200, proxied.upload_id),
        ("CompleteMultipartUpload", None, 200, proxied.upload_id),
        ("HeadObject", None, 200, ""),
        ("GetObject", None, 200, ""),
        ("AbortMultipartUpload", None, 404, proxied.upload_id),
    ]
    assert [each.request_bytes for each in s3_proxy.exchanges][:3] == [0, MIN_PART_BYTES, 2]
    assert s3_proxy.exchanges[5].reply_bytes == MIN_PART_BYTES + 2
    assert {each.request.key for each in s3_proxy.exchanges} == {"key"}
    assert s3_proxy.count("ke?") == {name: 1 + (name == "UploadPart") for name, *_ in seen}
    assert s3_proxy.count("another") == {}
    s3_proxy.forget()
    assert s3_proxy.count() == {}


def test_a_body_of_unknown_length_is_refused(s3_proxy: S3Proxy, bucket: str) -> None:
    """As the servers do; the request is no part of any count."""
    connection = HTTPConnection(s3_proxy.endpoint_url.removeprefix("http://"))
    connection.request("PUT", f"/{bucket}/key", b"4\r\nbody\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"})
    with connection.getresponse() as reply:
        assert reply.status == HTTPStatus.LENGTH_REQUIRED
    connection.close()
    assert s3_proxy.count() == {}


def test_half_a_request_is_none(s3_proxy: S3Proxy, bucket: str, direct: Place) -> None:
    """A client that dies while it sends has asked for nothing."""
    connection = HTTPConnection(s3_proxy.endpoint_url.removeprefix("http://"))
    connection.putrequest("PUT", f"/{bucket}/key")
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"half")
    connection.close()
    time.sleep(0.2)
    assert s3_proxy.count() == {}
    assert not direct.exists()


def test_a_server_that_is_gone_shows_as_a_lost_connection(
    own_s3_server: S3Server, s3_proxy: S3Proxy, proxied: Place
) -> None:
    """A request to a killed server ends without a reply, is recorded as unanswered, and is not repeated."""
    own_s3_server.kill()
    with pytest.raises(BotoCoreError):
        proxied.begin()
    assert [each.status for each in s3_proxy.exchanges] == [None]


def test_a_server_is_killed_at_a_request(own_s3_server: S3Server, s3_proxy: S3Proxy, proxied: Place) -> None:
    """The reply to what was carried out is lost with the server; where data outlive it, the object is there."""
    s3_proxy.inject(call(own_s3_server.kill, reaches_server=True))
    with pytest.raises(BotoCoreError):
        proxied.call("put_object", Body=b"body")
    own_s3_server.start()
    assert proxied.exists() is own_s3_server.keeps_data


def test_a_stopped_proxy_lets_go_of_its_connections(s3_server: S3Server) -> None:
    """Connections that clients keep open end with it, and no process listens on its port."""
    with S3Proxy(s3_server) as proxy:
        client = proxy.filesystem()
        client.call_s3("list_buckets")
    with pytest.raises(EndpointConnectionError):
        client.call_s3("list_buckets")
    assert not [thread for thread in threading.enumerate() if thread.name == "S3 proxy"]


# Which operation of S3 a request is, as the proxy of the tests tells it.


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("GET /", "ListBuckets"),
        ("PUT /bucket", "CreateBucket"),
        ("HEAD /bucket", "HeadBucket"),
        ("DELETE /bucket/", "DeleteBucket"),
        ("GET /bucket?prefix=a&max-keys=1", "ListObjects"),
        ("GET /bucket?list-type=2&prefix=&delimiter=%2F", "ListObjectsV2"),
        ("GET /bucket?uploads&prefix=a", "ListMultipartUploads"),
        ("GET /bucket?uploads=", "ListMultipartUploads"),
        ("GET /bucket?versions", "ListObjectVersions"),
        ("GET /bucket?versioning", "GetBucketVersioning"),
        ("GET /bucket?lifecycle", "GetBucketLifecycleConfiguration"),
        ("POST /bucket?delete", "DeleteObjects"),
        ("GET /bucket/a/b", "GetObject"),
        ("GET /bucket/a?partNumber=1", "GetObject"),
        ("GET /bucket/a?versionId=1", "GetObject"),
        ("PUT /bucket/a?x-id=PutObject", "PutObject"),
        ("HEAD /bucket/a", "HeadObject"),
        ("DELETE /bucket/a", "DeleteObject"),
        ("POST /bucket/a?uploads", "CreateMultipartUpload"),
        ("PUT /bucket/a?partNumber=7&uploadId=u", "UploadPart"),
        ("POST /bucket/a?uploadId=u", "CompleteMultipartUpload"),
        ("DELETE /bucket/a?uploadId=u", "AbortMultipartUpload"),
        ("GET /bucket/a?uploadId=u&max-parts=2", "ListParts"),
        ("GET /bucket/a?acl", "GET ?acl"),
        ("PUT /bucket/a?tagging=", "PUT ?tagging"),
        ("PATCH /bucket/a", "PATCH ?"),
    ],
)
def test_an_operation_is_told_by_method_and_query(line: str, operation: str) -> None:
    """Each has the name that S3's documentation gives it; what is not known here never passes for something else."""
    method, target = line.split()
    assert recognise(method, target, []).operation == operation


def test_a_copy_is_told_by_its_header_in_any_case() -> None:
    """A put that copies is no put, on objects and on parts."""
    copies = ["Host", "X-Amz-Copy-Source"]
    assert recognise("PUT", "/bucket/a", copies).operation == "CopyObject"
    assert recognise("PUT", "/bucket/a?partNumber=1&uploadId=u", copies).operation == "UploadPartCopy"


def test_names_and_numbers_are_decoded() -> None:
    """Key, upload id and part number are what the client meant, whatever characters they have."""
    request = recognise("PUT", "/bucket/a%2Fb%20c/%C3%A9%3F?partNumber=12&uploadId=2~x%2By", [])
    assert request == S3Request("PUT", "UploadPart", "bucket", "a/b c/é?", "2~x+y", 12)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (RequestPattern(), True),
        (RequestPattern(operation="PutObject"), True),
        (RequestPattern(operation="Put*", key="dir/*", method="PUT"), True),
        (RequestPattern(key="dir/*/file"), True),
        (RequestPattern(operation="GetObject", key="dir/*"), False),
        (RequestPattern(operation="PutObject", key="dir"), False),
        (RequestPattern(operation="PutObject", method="POST"), False),
    ],
)
def test_a_pattern_means_what_agrees_with_all_that_is_given(pattern: RequestPattern, *, matches: bool) -> None:
    """What is not given agrees with everything; a star crosses slashes."""
    assert pattern.matches(S3Request("PUT", "PutObject", "bucket", "dir/sub/file")) is matches
