"""A real HDFS, and lives of sinks on it."""
