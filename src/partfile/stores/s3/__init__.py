"""Part files on S3, as multipart uploads."""
