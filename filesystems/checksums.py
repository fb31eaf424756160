"""CRC-32 as zlib has it (ISO 3309), at the speed of the memory where the processor's own instructions are at hand."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32 as crc32_of
except ImportError:  # No build of it for this machine: the same values, at a tenth of the speed.
    from zlib import crc32 as crc32_of

__all__ = ["crc32_of"]
