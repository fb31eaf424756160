"""Real S3 servers, what stands in front of them, a strict model in memory, and lives of sinks there."""
