"""A strict model of S3 in memory."""
