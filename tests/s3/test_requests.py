"""Which operation of S3 a request is, as the proxy of the tests tells it."""

from __future__ import annotations

import pytest
from s3_requests import RequestPattern, S3Request, recognise


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
