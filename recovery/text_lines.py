"""Lines and CSV records of a byte stream: quoted for a CSV reader, or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20


def quoted_lines(data: bytes) -> bytes:
    """The lines of some text, each in quotes, which is CSV of one column.

    pyarrow has no dataset of text lines, but one of CSV. In quotes a line may hold every character, carriage returns
    included.
    """
    if not data:
        return b""
    ended = data if data.endswith(b"\n") else data + b"\n"
    lines = ended.replace(b'"', b'""').replace(b"\n", b'"\n"')
    return b'"' + lines[:-1]


def records(file: Any, *, is_csv: bool) -> Iterator[bytes]:
    """Yield the records of a file without their line ends.

    Args:
        file: Open for reading, in bytes.
        is_csv: A line feed inside quotes belongs to the record, and a carriage return before the last one does not.
    """
    rest = b""
    quotes = 0
    for line in _lines(file):
        rest += line
        quotes += line.count(b'"') if is_csv else 0
        if quotes % 2 == 0 and line.endswith(b"\n"):
            yield rest[: -2 if is_csv and rest.endswith(b"\r\n") else -1]
            rest, quotes = b"", 0
    if rest:
        yield rest


def _lines(file: Any) -> Iterator[bytes]:
    rest = b""
    while data := file.read(_CHUNK_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest
