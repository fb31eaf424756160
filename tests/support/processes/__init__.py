"""Processes that tests start, and waiting for what they do."""
