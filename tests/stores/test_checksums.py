"""CRC-32: the values of zlib, with and without the package that is quick at it."""

from __future__ import annotations

import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

from partfile.stores.checksums import crc32_of

if TYPE_CHECKING:
    import random


def test_values_are_zlibs(rng: random.Random) -> None:
    """Of any length, at any place in memory, and going on from any value: checkpoints of other hosts hold them."""
    for size_bytes in [0, 1, 7, 8, 63, 64, 65, 255, 4096, 100_003]:
        data, start = memoryview(rng.randbytes(size_bytes + 3))[3:], rng.getrandbits(32)
        assert crc32_of(data) == zlib.crc32(data)
        assert crc32_of(data, start) == zlib.crc32(data, start)


def test_zlib_stands_in_where_there_is_no_build() -> None:
    """A machine without one reads and writes the same."""
    code = (
        "import sys; sys.modules['isal'] = None\n"
        "from partfile.stores import checksums\n"
        "import zlib\n"
        "assert checksums._crc32 is zlib.crc32\n"
        "assert checksums.crc32_of(b'rows', 5) == zlib.crc32(b'rows', 5)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
