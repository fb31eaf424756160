"""Keyed state of an operator: five kinds, namespaces, expiry, and one canonical file whatever the backend."""

from partfile.errors import ConfigError

try:
    import msgpack as _msgpack  # noqa: F401 - looked for alone, so that its absence has a hint.
    import xxhash as _xxhash  # noqa: F401
except ImportError as _error:
    raise ConfigError(
        f"keyed state needs the package {_error.name}, which is not installed", hint="pip install 'partfile[state]'"
    ) from _error
