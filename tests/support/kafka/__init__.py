"""A real Kafka, and the jars with which Spark reads it."""
