"""Spark streams of the tests."""
