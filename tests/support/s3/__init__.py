"""Lives of sinks on real S3 servers."""
