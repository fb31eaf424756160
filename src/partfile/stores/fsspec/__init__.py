"""Part files on any other fsspec file system."""
