"""Checkpoints of the tests, whole, old and damaged."""
