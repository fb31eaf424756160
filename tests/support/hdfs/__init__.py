"""Lives of sinks on a real HDFS."""
