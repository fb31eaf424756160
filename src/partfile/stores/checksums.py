"""CRC-32 as zlib has it (ISO 3309), at the speed of the memory where the processor's own instructions are at hand."""

from __future__ import annotations

try:
    # isal is as quick, but where it is installed fsspec reads gzip by it, in the whole process.
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:  # The extra "fast" is not installed: the same values, at a tenth of the speed.
    from zlib import crc32 as _crc32


def crc32_of(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """The CRC-32 of some bytes.

    A function of ours. Spark carries it by this name to its workers, which may have another package than the driver.

    Args:
        data: The bytes.
        start: That of the bytes before them.
    """
    return _crc32(data, start)
