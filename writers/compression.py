"""Compressed row parts: one member or frame from each persist to the next.

Members and frames stand side by side in one file, and every reader of a codec takes such a file as a whole. So each
length that a persist returned is a place where a part may be cut, and where another process may go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.errors import ConfigError
from partfile.writers import frames
from partfile.writers.option_types import settle_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.writers.frames import Frame
    from partfile.writers.port import ByteStream


@dataclass(frozen=True, slots=True)
class _Codec:
    """One way to compress rows: the suffix that readers know it by, and the levels that it takes, if any."""

    suffix: str
    start: Callable[[ByteStream, int | None], Frame]
    levels: range | None = None


_CODECS: dict[str | None, _Codec] = {
    None: _Codec("", frames.plain),
    "gzip": _Codec(".gz", frames.gzip, range(10)),
    "bz2": _Codec(".bz2", frames.bzip2, range(1, 10)),
    "zstd": _Codec(".zst", frames.zstd),
    "lz4": _Codec(".lz4", frames.lz4),
    "snappy": _Codec(".snappy", frames.snappy),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """How row parts are compressed.

    Args:
        codec: ``"gzip"``, ``"zstd"``, ``"bz2"``, ``"lz4"``, ``"snappy"``, or None for plain bytes. docs/FORMATS.md says
            which reader knows which.
        level: gzip from 0 (fast) to 9 (small), where None is 6; bz2 from 1 to 9, where None is 9. zstd and lz4 always
            use the level of pyarrow's streams, which is 1.

    Raises:
        ConfigError: An unknown codec, or a level that the codec does not take.
    """

    codec: str | None = None
    level: int | None = None

    def __post_init__(self) -> None:
        settle_options(self, Compression)
        if self.codec not in _CODECS:
            known = ", ".join(str(name) for name in _CODECS)
            raise ConfigError(f"Compression {self.codec!r} is not known.", hint=f"Row formats take {known}.")
        if self.level is None:
            return
        levels = _CODECS[self.codec].levels
        if levels is None:
            raise ConfigError(f"Compression {self.codec!r} takes no level.", hint="Only gzip and bz2 do.")
        if self.level not in levels:
            raise ConfigError(f"The {self.codec} level {self.level} is not from {levels[0]} to {levels[-1]}.")

    @property
    def suffix(self) -> str:
        """What the file name gets at its end, dot included."""
        return _CODECS[self.codec].suffix

    def start(self, stream: ByteStream) -> Frame:
        """Begin one member or frame at the end of ``stream``."""
        return _CODECS[self.codec].start(stream, self.level)
