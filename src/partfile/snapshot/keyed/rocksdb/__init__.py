"""Keyed state in RocksDB, on the machine's own disk: as large as that, and slower than the heap."""

from partfile.errors import ConfigError

try:
    import rocksdict as _rocksdict  # noqa: F401 - looked for alone, so that its absence has a hint.
except ImportError as _error:
    raise ConfigError(
        "keyed state in RocksDB needs the package rocksdict, which is not installed",
        hint="pip install 'partfile[rocksdb]'",
    ) from _error
