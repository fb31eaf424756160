"""Which permission of AWS's policies each operation of S3 needs."""

from __future__ import annotations

ACTIONS = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}
"""By operation, as AWS documents it."""
