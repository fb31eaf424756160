"""Parquet files whose column ``id`` is encrypted, by keys that are no secret; importable by Spark's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

if TYPE_CHECKING:
    from pathlib import Path


class NoVault(pe.KmsClient):  # type: ignore[misc]  # pyarrow has no types here.
    """Hands keys out as they are."""

    def wrap_key(self, key_bytes: bytes, _master_key: str) -> bytes:
        """The key, as text."""
        return key_bytes.hex().encode()

    def unwrap_key(self, wrapped_key: bytes | str, _master_key: str) -> bytes:
        """The key, from its text."""
        return bytes.fromhex(wrapped_key if isinstance(wrapped_key, str) else wrapped_key.decode())


def encryption() -> Any:
    """What encrypts one file."""
    settings = pe.EncryptionConfiguration(footer_key="footer", column_keys={"key": ["id"]})
    return _factory().file_encryption_properties(pe.KmsConnectionConfig(), settings)


def is_encrypted(path: Path) -> bool:
    """Whether a Parquet file has an encrypted footer."""
    return path.read_bytes()[-4:] == b"PARE"


def decrypted_ids(path: Path) -> list[int]:
    """The rows of an encrypted file."""
    keys = _factory().file_decryption_properties(pe.KmsConnectionConfig())
    file: Any = pq.ParquetFile(path, decryption_properties=keys)
    found: list[int] = file.read()["id"].to_pylist()
    return found


def _factory() -> Any:
    return pe.CryptoFactory(lambda _connection: NoVault())
