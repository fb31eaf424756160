"""From any text to one path segment: injective, never hidden, never outside the base (T6 to T8)."""

from __future__ import annotations

import re
from functools import lru_cache

from partfile.filesystems.errors import BucketValueError

MAX_SEGMENT_BYTES = 255
MAX_PATH_BYTES = 1024
# Spark's list for partition values, so that readers that unescape Hive paths read ours.
_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
HIDING = ("_", ".")
_SAFE_PATH = re.compile("(?![_.])[^/\x00-\x1f\x7f]+(?:/(?![_.])[^/\x00-\x1f\x7f]+)*")


def escape_segment(text: str) -> str:
    """Return ``text`` as one path segment.

    Characters that mean something to a file system, a glob or Hive become ``%XX``, as in Spark's partition paths; so
    does a leading ``_`` or ``.``, which would hide the file from readers or reach partfile's own
    state. Different texts give different segments.

    Raises:
        BucketValueError: It is empty, cannot be encoded as UTF-8, or is longer than 255 bytes once escaped.
    """
    if not text:
        raise BucketValueError("an empty text names no bucket")
    escaped = escape_value(text)
    if escaped.startswith(HIDING):
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    return check_segment(escaped)


def escape_value(text: str) -> str:
    """Return ``text`` with every character that means something as ``%XX``; for use behind a ``column=``."""
    return _ESCAPED.sub(lambda match: f"%{ord(match.group()):02X}", text)


def check_segment(escaped: str) -> str:
    """Return an escaped segment if a file system can hold it.

    Raises:
        BucketValueError: It cannot be encoded as UTF-8 or is longer than 255 bytes.
    """
    try:
        length = len(escaped.encode())
    except UnicodeEncodeError as error:
        raise BucketValueError(f"{escaped[:60]!r} cannot be encoded as UTF-8, so it names no bucket") from error
    if length > MAX_SEGMENT_BYTES:
        raise BucketValueError(
            f"{escaped[:60]!r}... has {length} bytes as a path segment; {MAX_SEGMENT_BYTES} are allowed"
        )
    return escaped


def escape_path(path: str) -> str:
    """Return ``path`` with each of its ``/``-separated segments escaped; the empty path is the base itself.

    Raises:
        BucketValueError: A segment cannot be encoded or is empty, or the whole is longer than 1024 bytes.
    """
    if not path:
        return path
    return check_length("/".join(escape_segment(segment) for segment in path.split("/")))


def check_length(path: str) -> str:
    """Return ``path`` if it is short enough for every store.

    Raises:
        BucketValueError: It is longer than 1024 bytes.
    """
    if len(path.encode()) > MAX_PATH_BYTES:
        raise BucketValueError(f"{path[:60]!r}... is longer than {MAX_PATH_BYTES} bytes, so it names no bucket")
    return path


@lru_cache(maxsize=10_000)
def is_safe_path(path: str) -> bool:
    """Whether ``path`` can stand as a bucket as it is; what users and their bucketers give is asked, not believed.

    Unlike escaping this allows ``=`` and the like: ``y=2013/bad`` is a fine bucket. The answers are kept, since the
    same buckets come with every batch.
    """
    if not path:
        return True
    if not _SAFE_PATH.fullmatch(path):
        return False
    try:
        sizes = [len(segment.encode()) for segment in path.split("/")]
    except UnicodeEncodeError:
        return False
    return max(sizes) <= MAX_SEGMENT_BYTES and sum(sizes) + len(sizes) - 1 <= MAX_PATH_BYTES
