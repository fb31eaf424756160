"""partfile: a transactional file sink for PySpark and plain Python."""
