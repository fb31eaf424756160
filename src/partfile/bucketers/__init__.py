"""Which bucket a row belongs to: pure functions of a pyarrow.RecordBatch."""
