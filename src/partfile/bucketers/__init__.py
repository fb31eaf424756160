"""Bucketers: from a pyarrow.RecordBatch to the bucket of each row, by pure functions."""
