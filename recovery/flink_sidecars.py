"""Sidecars as Flink's BucketingSink writes them: the length as ``DataOutput.writeUTF`` of its decimal digits. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from partfile.filesystems.errors import SnapshotCorrupt
from partfile.recovery.layout import MAX_SIDECAR_BYTES, SidecarNaming

LENGTH_BYTES = 2
MAX_FLINK_SIDECAR_BYTES = LENGTH_BYTES + MAX_SIDECAR_BYTES
_DIGITS = re.compile(rb"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class FlinkSidecars(SidecarNaming):
    """The sidecars of a tree that Flink's BucketingSink has written, for ``partfile.read`` and the other readers.

    A sidecar has two bytes with the number of bytes that follow, big-endian, and then the valid length in decimal
    digits, which are the same in Java's modified UTF-8 and in ASCII.

    Args:
        prefix: What ``setValidLengthPrefix`` was given.
        suffix: What ``setValidLengthSuffix`` was given.

    Raises:
        ConfigError: The prefix would not hide the sidecar.
    """

    def length_in(self, content: bytes, sidecar: str) -> int:
        """The valid length in the content of a sidecar; see ``SidecarNaming.length_in``."""
        digits = content[LENGTH_BYTES:]
        if content[:LENGTH_BYTES] != len(digits).to_bytes(LENGTH_BYTES, "big") or not _DIGITS.fullmatch(digits):
            raise SnapshotCorrupt(
                f"sidecar {sidecar!r} says {content[:MAX_FLINK_SIDECAR_BYTES]!r}, no length as Flink writes one",
                hint="It must hold two bytes with a number, and as many decimal digits. Without it nobody knows where "
                "its file ends; put it back from a copy.",
                path=sidecar,
            )
        return int(digits)
