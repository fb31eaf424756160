"""partfile: a transactional file sink for PySpark and plain Python."""

from partfile.version import __version__

__all__ = ["__version__"]
